// Command jobs implements a queue that distributes jobs to workers. A job is assigned to one worker at a time. If that
// worker is lost or leaves, the job is assigned to another one.
//
//	worker 1 ── Work ──► queue      a duplex for each worker: jobs down, results up
//	worker 2 ── Work ──► queue      a worker that leaves calls CloseSend, even when it is idle
//	worker 3 ── Work ──► queue      the job of a lost worker returns to the queue
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
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

// Work is a worker's session. Its input is the worker's name; the worker sends results and receives jobs.
var Work = qs.DefineDuplex[string, Result, Job]("jobs/work")

// serveWorker returns the handler of Work, which assigns one job at a time to the worker. The channel jobs must have
// capacity for all jobs, so that returning one never blocks.
func serveWorker(jobs chan Job, results chan<- Result) func(context.Context, string, *qs.DuplexServer[Result, Job]) error {
	return func(ctx context.Context, worker string, s *qs.DuplexServer[Result, Job]) error {
		ctx, cancel := context.WithCancel(ctx) // ends with this handler
		defer cancel()
		// One goroutine receives, so that this one can also wait for a job. It ends with the handler.
		received := make(chan Result) // closed when the worker sends no more: it leaves (CloseSend), or is lost
		go func() {
			defer close(received)
			for result, err := range s.All() {
				if err != nil {
					return
				}
				select {
				case received <- result:
				case <-ctx.Done():
					return
				}
			}
		}()
		for qs.Draining(ctx).Err() == nil { // select takes any of what is ready
			select {
			case _, more := <-received:
				if more {
					return qs.Errorf(qs.ErrBadInput, "a result without a job")
				}
				return context.Cause(ctx) // nil if an idle worker leaves
			case job, more := <-jobs:
				if !more {
					return nil
				}
				if err := s.Send(job); err != nil {
					jobs <- job // the worker does not have it
					return err
				}
				result, more := <-received
				if !more { // the worker has left, or is lost: the job may have been done, so doing it twice must be harmless
					jobs <- job
					return context.Cause(ctx)
				}
				results <- result
			case <-qs.Draining(ctx).Done():
			}
		}
		return qs.Errorf(qs.ErrDraining, "this queue stops")
	}
}

// work does jobs until there are none left or leave is done. In the latter case the queue assigns a job without a
// result to another worker.
func work(ctx, leave context.Context, queue qs.Peer, name string, do func(Job) Result) error {
	session := Work.Call(ctx, queue, name)
	defer session.Close()
	defer context.AfterFunc(leave, session.CloseSend)() // ends an idle wait in All, too: the handler returns
	for job, err := range session.All() {
		if err != nil {
			return err
		}
		if leave.Err() != nil {
			continue // the handler gives it back
		}
		result := do(job)
		if err := session.Send(result); err != nil && leave.Err() == nil {
			return err
		}
	}
	return nil
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
	upper := func(job Job) Result { return Result{job.ID, strings.ToUpper(job.Text)} }

	// start starts a worker with its own node, as if it were another process.
	start := func(ctx, leave context.Context, name string, do func(Job) Result) (ended chan error) {
		ended = make(chan error, 1)
		go func() {
			node, err := qs.Open("tcp://", qs.Config{})
			check(err)
			defer node.Close()
			peer, err := node.Peer(ctx, queue)
			check(err)
			ended <- work(ctx, leave, peer, name, do)
		}()
		return ended
	}
	fragile, crash := context.WithCancel(ctx)
	lost := start(fragile, ctx, "fragile", func(job Job) Result {
		crash() // while it has a job, which is then assigned to another worker
		return upper(job)
	})
	fmt.Println("fragile is lost:", errors.Is(<-lost, context.Canceled))
	retire, leave := context.WithCancel(ctx)
	retired := start(ctx, retire, "retiring", upper)
	steady := start(ctx, ctx, "steady", upper)

	done := make([]string, len(words))
	for range words {
		r := <-results
		done[r.ID] = r.Text
	}
	leave() // its session stays open, but there is nothing to do
	fmt.Println("retiring has left:", <-retired)
	close(jobs) // ends the sessions
	fmt.Println("steady has ended:", <-steady)
	fmt.Println(strings.Join(done, " "))
}

// serve opens a node on a free port and serves until stop is called.
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
