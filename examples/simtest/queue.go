package simtest

import (
	"context"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Take returns the next job. It waits until there is one.
var Take = qs.Define[string, int]("queue/take")

// A Queue gives each job to one worker. It waits and starts its goroutine by the methods of its node, and so runs in a world, too.
type Queue struct {
	mu   sync.Mutex // guards the field below; it is not held while a method of the node is called
	jobs []int
}

// Handle has node serve q, and adds count jobs, one in each period.
func (q *Queue) Handle(ctx context.Context, node *qs.Node, count int, period time.Duration) {
	Take.Handle(node, func(ctx context.Context, _ string) (int, error) {
		for {
			if job, ok := q.take(); ok {
				return job, nil
			}
			if err := node.HG().Wait(ctx, q.hasJob); err != nil { // instead of a channel
				return 0, err
			}
		}
	})
	node.HG().NA().Spawn(func() { // instead of go: a goroutine, or a coroutine of the world
		for job := range count {
			if node.HG().Sleep(ctx, period) != nil {
				return
			}
			q.add(job)
			node.HG().Wake() // the handlers in Wait look at hasJob again
		}
	})
}

func (q *Queue) add(job int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = append(q.jobs, job)
}

func (q *Queue) hasJob() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs) > 0
}

func (q *Queue) take() (job int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.jobs) == 0 {
		return 0, false
	}
	job, q.jobs = q.jobs[0], q.jobs[1:]
	return job, true
}
