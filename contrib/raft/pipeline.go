package raftqs

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A pipeline is a Duplex to one follower.
//
//	AppendEntries ─ window ─► inFlight ─► Send ══► servePipeline ── one at a time ──► raft of the follower
//	Consumer ◄── ready ◄── receive ◄══════════════ Send ◄───────────────────────────────────┘
type pipeline struct {
	ctx    context.Context // of the call: ends with an error or Close
	cancel context.CancelCauseFunc
	call   *qs.DuplexCall[raft.AppendEntriesRequest, raft.AppendEntriesResponse]
	window chan struct{} // has one element for each request in flight
	ready  chan raft.AppendFuture
	closed chan struct{}
	most   time.Duration // Options.Timeout

	mu       sync.Mutex // guards the fields below
	inFlight []*appendFuture
	overdue  *time.Timer // runs while there is one in flight
	err      error       // why the pipeline has ended
	shut     bool
}

// AppendEntriesPipeline implements raft.Transport. The pipeline ends with its first error, and when the oldest response takes longer than
// Options.Timeout; raft closes it and opens another one.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if t.o.MaxInFlight < 2 {
		return nil, raft.ErrPipelineReplicationNotSupported
	}
	start, stop := t.node.HG().NA().WithTimeout(t.ctx, t.o.Timeout)
	defer stop()
	peer, err := t.peer(start, id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{
		window: make(chan struct{}, t.o.MaxInFlight), ready: make(chan raft.AppendFuture, t.o.MaxInFlight), closed: make(chan struct{}),
		most: t.o.Timeout,
	}
	p.ctx, p.cancel = context.WithCancelCause(t.ctx)
	p.overdue = time.AfterFunc(p.most, func() {
		p.cancel(qs.Errorf(qs.ErrTimeout, "raftqs: pipeline to server %s: no response for %v", id, p.most))
	})
	p.overdue.Stop()
	p.call = t.pipe.Call(p.ctx, peer, struct{}{})
	t.node.HG().NA().Spawn(p.receive)
	return p, nil
}

// AppendEntries implements raft.AppendPipeline: it sends a request, and blocks while Options.MaxInFlight are in flight. One goroutine at a time
// calls it.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	select {
	case p.window <- struct{}{}:
	case <-p.ctx.Done():
		return nil, p.cause()
	}
	parts := split(args)
	f := &appendFuture{start: time.Now(), args: args, resp: resp, parts: len(parts), done: make(chan struct{})}
	if err := p.push(f); err != nil {
		return nil, err
	}
	for _, part := range parts {
		if err := p.call.Send(*part); err == io.EOF { // receive learns why
			return nil, raft.ErrPipelineShutdown
		} else if err != nil {
			p.cancel(err)
			return nil, err
		}
	}
	return f, nil
}

// Consumer implements raft.AppendPipeline: futures come in the order of their requests, also those that have failed.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.ready }

// Close implements raft.AppendPipeline: requests in flight fail with raft.ErrPipelineShutdown.
func (p *pipeline) Close() error {
	p.mu.Lock()
	shut := p.shut
	p.shut = true
	p.mu.Unlock()
	if !shut {
		close(p.closed)
		p.cancel(raft.ErrPipelineShutdown)
		p.call.Close()
	}
	return nil
}

// push puts f behind those in flight.
func (p *pipeline) push(f *appendFuture) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if len(p.inFlight) == 0 {
		p.overdue.Reset(p.most)
	}
	p.inFlight = append(p.inFlight, f)
	return nil
}

// respond gives a response to the oldest in flight, and returns that if it has all.
func (p *pipeline) respond(resp *raft.AppendEntriesResponse) (*appendFuture, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.inFlight) == 0 {
		return nil, qs.Errorf(qs.ErrInternal, "raftqs: pipeline: a response to no request")
	}
	f := p.inFlight[0]
	if !f.refused {
		*f.resp = *resp // the first refusal, or the last response
		f.refused = !resp.Success
	}
	if f.parts--; f.parts > 0 {
		return nil, nil
	}
	p.inFlight = p.inFlight[1:]
	if len(p.inFlight) > 0 {
		p.overdue.Reset(p.most)
	} else {
		p.overdue.Stop()
	}
	return f, nil
}

// receive takes the responses until the pipeline ends.
func (p *pipeline) receive() {
	defer p.call.Close()
	for {
		resp, err := p.call.Receive()
		var f *appendFuture
		if err == nil {
			f, err = p.respond(&resp)
		}
		if err != nil {
			p.fail(err)
			return
		}
		if f == nil {
			continue
		}
		close(f.done)
		select {
		case p.ready <- f:
			<-p.window
		case <-p.closed:
			p.fail(raft.ErrPipelineShutdown)
			return
		}
	}
}

// fail ends the pipeline: whatever is in flight fails.
func (p *pipeline) fail(err error) {
	p.cancel(fmt.Errorf("raftqs: pipeline: %w", err))
	err = p.cause() // of what came first: its time, Close, or err
	p.mu.Lock()
	failed := p.inFlight
	p.inFlight, p.err = nil, err
	p.overdue.Stop()
	p.mu.Unlock()
	for _, f := range failed {
		f.err = err
		close(f.done)
	}
	for _, f := range failed {
		select {
		case p.ready <- f:
		case <-p.closed:
			return
		}
	}
}

func (p *pipeline) cause() error { return context.Cause(p.ctx) }

// An appendFuture is a request of a pipeline. It implements raft.AppendFuture.
type appendFuture struct {
	start   time.Time
	args    *raft.AppendEntriesRequest
	resp    *raft.AppendEntriesResponse
	parts   int  // responses that are missing; guarded by the pipeline's mu
	refused bool // one of them was a refusal; the same

	done chan struct{}
	err  error // valid when done is closed
}

// Error waits for the response, and returns nil when it is there.
func (f *appendFuture) Error() error {
	<-f.done
	return f.err
}

// Start, Request and Response implement raft.AppendFuture.
func (f *appendFuture) Start() time.Time                      { return f.start }
func (f *appendFuture) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *appendFuture) Response() *raft.AppendEntriesResponse { return f.resp }

// servePipeline has raft answer the requests of a pipeline, one after the other.
func (t *Transport) servePipeline(ctx context.Context, _ struct{}, s *qs.DuplexServer[raft.AppendEntriesRequest, raft.AppendEntriesResponse]) error {
	for req, err := range s.All() {
		if err != nil {
			return err
		}
		resp, err := serve[raft.AppendEntriesResponse](ctx, t, &req, nil, false)
		if err != nil {
			return err
		}
		if err := s.Send(*resp); err != nil {
			return err
		}
	}
	return nil
}
