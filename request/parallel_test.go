package request_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/quicksilver-rpc/quicksilver/request"
)

// echo is a Progressor that really blocks and whose peer is a goroutine: no bubble, no virtual time.
type echo struct {
	start time.Time
	peer  chan func()   // what is sent
	bell  chan struct{} // rung when something is queued, and by Wake
	gone  chan struct{} // closed when the peer has ended

	mu    sync.Mutex
	queue []func()
}

func newEcho() *echo {
	e := &echo{start: time.Now(), peer: make(chan func(), 128), bell: make(chan struct{}, 1), gone: make(chan struct{})}
	go func() {
		defer close(e.gone)
		for cb := range e.peer {
			e.mu.Lock()
			e.queue = append(e.queue, cb)
			e.mu.Unlock()
			signal(e.bell)
		}
	}()
	return e
}

func (e *echo) close() { close(e.peer); <-e.gone }

func (e *echo) Wake()              { signal(e.bell) }
func (e *echo) Now() time.Duration { return time.Since(e.start) }

func (e *echo) Trigger(int) int {
	e.mu.Lock()
	if len(e.queue) == 0 {
		e.mu.Unlock()
		return 0
	}
	cb := e.queue[0]
	e.queue = e.queue[1:]
	e.mu.Unlock()
	cb()
	return 1
}

func (e *echo) Progress(timeout time.Duration) error {
	e.mu.Lock()
	queued := len(e.queue)
	e.mu.Unlock()
	switch {
	case queued > 0:
		return nil
	case timeout == 0:
		return os.ErrDeadlineExceeded
	}
	<-e.bell // an hour is as good as no limit
	return nil
}

// play lets each of n goroutines send and wait, rounds times in all.
func (e *echo) play(n, rounds int) {
	c := request.NewClass(e)
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			r := c.Create(nil)
			cb := func() { r.Complete(nil) }
			for i := g; i < rounds; i += n {
				r.Reset(nil)
				e.peer <- cb
				if !r.Wait(time.Hour) {
					panic("timeout")
				}
			}
		})
	}
	wg.Wait()
}

// TestWaitParallel checks that no wake-up is lost: a lost one blocks the test for ever.
func TestWaitParallel(t *testing.T) {
	for _, n := range []int{1, 2, 3, 64} {
		e := newEcho()
		e.play(n, 1000)
		e.close()
	}
}

func BenchmarkWaitParallel(b *testing.B) {
	for _, n := range []int{1, 2, 8, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := newEcho()
			e.play(n, b.N)
			e.close()
		})
	}
}

func BenchmarkWait(b *testing.B) {
	for _, bb := range []struct {
		name    string
		timeout time.Duration
	}{{"no limit", -1}, {"timeout", time.Second}} {
		b.Run(bb.name, func(b *testing.B) {
			p := &fakeProgressor{}
			r := request.NewClass(p).Create(nil)
			cb := func() { r.Complete(nil) }
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(nil)
				p.sent = cb
				r.Wait(bb.timeout)
			}
		})
	}
}

func BenchmarkWaitContext(b *testing.B) {
	p := &fakeProgressor{}
	r := request.NewClass(p).Create(nil)
	cb := func() { r.Complete(nil) }
	b.ReportAllocs()
	for b.Loop() {
		r.Reset(nil)
		p.sent = cb
		_ = r.WaitContext(b.Context())
	}
}
