// Command jobs has a queue that gives jobs to workers. A job goes to one worker at a time, and to another one when its worker is lost.
//
//	worker 1 ── Work ──► queue      a duplex for each worker: jobs down, results up
//	worker 2 ── Work ──► queue      a worker that goes away gives its job back
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

type Job struct {
	ID   int
	Text string
}

type Result struct {
	ID   int
	Text string
}

// Work is the session of a worker: In is its name, results come up, jobs go down.
var Work = qs.DefineDuplex[string, Result, Job]("jobs/work")

// serveWorker is the handler of Work: one job at a time goes to the worker. jobs has room for all jobs, so that one can always go back.
func serveWorker(jobs chan Job, results chan<- Result) func(context.Context, string, *qs.DuplexServer[Result, Job]) error {
	return func(ctx context.Context, worker string, s *qs.DuplexServer[Result, Job]) error {
		for qs.Draining(ctx).Err() == nil { // select takes any of what is ready
			select {
			case job, more := <-jobs:
				if !more {
					return nil
				}
				if err := s.Send(job); err != nil {
					jobs <- job // nobody has it
					return err
				}
				result, err := s.Receive()
				if err != nil {
					jobs <- job // the worker is gone, or gave up: the job may have been done, so doing it twice must be harmless
					return err
				}
				results <- result
			case <-qs.Draining(ctx).Done():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return qs.Errorf(qs.ErrDraining, "this queue stops")
	}
}

// work does jobs until there are none, or quit of them.
func work(ctx context.Context, queue qs.Peer, name string, quit int) error {
	session := Work.Call(ctx, queue, name)
	defer session.Close()
	for range quit {
		job, err := session.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := session.Send(Result{job.ID, strings.ToUpper(job.Text)}); err != nil {
			return err
		}
	}
	_, err := session.Receive() // one more job, which it leaves undone: the queue gives it to another worker
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	jobs, results := make(chan Job, 100), make(chan Result)
	words := strings.Fields("seven jobs are done by these workers")
	for id, word := range words {
		jobs <- Job{id, word}
	}
	queue, stop := serve(func(n *qs.Node) { Work.Handle(n, serveWorker(jobs, results)) })
	defer stop()

	var workers sync.WaitGroup
	for _, w := range []struct {
		name string
		quit int // after how many jobs it crashes
	}{{"fragile", 1}, {"steady", 100}} {
		workers.Go(func() {
			node, err := qs.Open("tcp://", qs.Config{})
			check(err)
			defer node.Close()
			peer, err := node.Peer(ctx, queue)
			check(err)
			check(work(ctx, peer, w.name, w.quit))
		})
	}
	done := make([]string, len(words))
	for range words {
		r := <-results
		done[r.ID] = r.Text
	}
	close(jobs) // the sessions end
	workers.Wait()
	fmt.Println(strings.Join(done, " "))
}

// serve opens a node at a free port and serves until stop is called.
func serve(register func(*qs.Node)) (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	register(node)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	return node.Addr().String(), func() {
		cancel()
		check(<-ended)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
