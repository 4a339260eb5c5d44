package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func Example() {
	main()
	// Output:
	// fragile is lost: true
	// retiring has left: <nil>
	// steady has ended: <nil>
	// SEVEN JOBS ARE DONE BY THESE WORKERS
}

// TestLeaveInJob checks workers that leave in the middle of a job: each job has one result, of them
// or of the remaining worker. At the end the queue stops, and the idle worker is notified.
func TestLeaveInJob(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const count = 50
	jobs, results := make(chan Job, count), make(chan Result)
	for id := range count {
		jobs <- Job{id, fmt.Sprint(id)}
	}
	queue, stop := serve(func(n *qs.Node) { Work.Handle(n, serveWorker(jobs, results)) })
	node, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer node.Close()
	peer, err := node.Peer(ctx, queue)
	require.NoError(t, err)
	ended, stays := make(chan error), make(chan error)
	for i := range 20 {
		go func() {
			retire, leave := context.WithCancel(ctx)
			defer leave()
			ended <- work(ctx, retire, peer, fmt.Sprint("leaves", i), func(job Job) Result {
				leave()
				return Result(job)
			})
		}()
	}
	go func() {
		stays <- work(ctx, ctx, peer, "stays", func(job Job) Result { return Result(job) })
	}()
	seen := map[int]bool{}
	for left := 20; len(seen) < count || left > 0; {
		select {
		case r := <-results:
			require.False(t, seen[r.ID], "two results of job %d", r.ID)
			seen[r.ID] = true
			if len(seen) == count { // those without a job are idle: they have left at their first one, or end with the queue
				go stop()
			}
		case err := <-ended:
			if err != nil {
				require.ErrorIs(t, err, qs.ErrDraining)
			}
			left--
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	}
	require.ErrorIs(t, <-stays, qs.ErrDraining)
}

func TestMain(m *testing.M) { leak.Main(m) }
