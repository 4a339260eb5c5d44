package raftqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A pipeline is a call with two streams to one follower. No goroutine stands between raft and the ones that drive the two nodes:
//
//	AppendEntries ─► inFlight ─► up, then window ════► inbound.arrived ─► main loop of raft
//	Consumer ◄── ready ◄── arrived ◄════════ down ◄── inbound.serve ◄── response ─┘
//
// AppendEntries and inbound.serve write to the connection themselves. The two functions called arrived are callbacks of the nodes.
type pipeline struct {
	h      *hg.Handle
	up     frameWriter
	down   frameReader
	turn   turn            // of down
	ctx    context.Context // ends with an error or Close
	cancel context.CancelCauseFunc
	window chan struct{} // has one element for each request in inFlight or ended, and one for the next
	ready  chan raft.AppendFuture
	closed chan struct{}
	most   time.Duration // Options.Timeout
	spawn  func(func())

	mu       sync.Mutex  // guards the fields below, and is held while the call begins
	unwatch  func() bool // ends the watch of Transport.ctx
	inFlight []*appendFuture
	overdue  *time.Timer     // runs while there is one in flight
	ended    []*appendFuture // for which ready has no room yet
	spilling bool            // a goroutine moves ended to ready
	err      error           // why the pipeline has ended
	shut     bool
}

// pipelineStreams are those of a pipeline: requests go up, responses come down.
var pipelineStreams = []hg.StreamSpec{{Up: true, Bulk: true}, {}}

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
		most: t.o.Timeout, spawn: t.node.HG().NA().Spawn,
	}
	p.window <- struct{}{}
	p.ctx, p.cancel = context.WithCancelCause(t.ctx)
	p.overdue = time.AfterFunc(p.most, func() {
		p.end(qs.Errorf(qs.ErrTimeout, "raftqs: pipeline to server %s: no response for %v", id, p.most))
	})
	p.overdue.Stop()
	if p.h, err = t.node.HG().Create(peer.Addr(), t.pipe); err != nil {
		p.cancel(err)
		return nil, err
	}
	if err = p.begin(t.ctx); err != nil {
		p.end(err)
		_ = p.h.Close()
		return nil, p.cause()
	}
	p.arrived() // from now on it is called when something comes
	return p, nil
}

// begin makes the call, which ends with transport, too: that may be now.
func (p *pipeline) begin(transport context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwatch = context.AfterFunc(transport, func() { p.end(context.Cause(transport)) })
	if err := p.h.SetStreams(pipelineStreams...); err != nil {
		return err
	}
	if err := p.h.Forward(nil, p.over); err != nil {
		return err
	}
	p.up.s, p.down.s = p.h.Stream(0), p.h.Stream(1)
	p.down.s.OnReady(p.arrived)
	return nil
}

// AppendEntries implements raft.AppendPipeline: it sends a request, and then blocks while Options.MaxInFlight are in flight. Raft makes the next
// request when it has returned: so that has all entries that have come by then. One goroutine at a time calls it.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	parts := split(args)
	f := &appendFuture{start: time.Now(), args: args, resp: resp, parts: len(parts), done: make(chan struct{})}
	if err := p.push(f); err != nil {
		return nil, err
	}
	for _, part := range parts {
		if err := p.up.send(p.ctx, part); err != nil {
			p.end(err)
			return nil, p.cause()
		}
	}
	select {
	case p.window <- struct{}{}:
		return f, nil // which may have failed already
	default:
	}
	select {
	case p.window <- struct{}{}:
		return f, nil
	case <-p.ctx.Done():
		return nil, p.cause()
	}
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
		p.end(raft.ErrPipelineShutdown)
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

// arrived takes the responses that have come. It is a callback of the node, and does not block.
func (p *pipeline) arrived() {
	if !p.turn.enter() {
		return
	}
	for {
		b, err := p.down.next()
		var resp raft.AppendEntriesResponse
		switch {
		case isAgain(err):
			if p.turn.leave() {
				runtime.Gosched() // as in inbound.arrived
				return
			}
			continue
		case err != nil: // the call ends, and says more
			return
		}
		if err = (wire{}).Decode(b, &resp); err == nil {
			err = p.respond(&resp)
		}
		if err != nil {
			p.end(err)
			return
		}
	}
}

// respond gives a response to the oldest request in flight, which ends with its last.
func (p *pipeline) respond(resp *raft.AppendEntriesResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.inFlight) == 0 {
		return qs.Errorf(qs.ErrInternal, "raftqs: pipeline: a response to no request")
	}
	f := p.inFlight[0]
	if !f.refused {
		*f.resp = *resp // the first refusal, or the last response
		f.refused = !resp.Success
	}
	if f.parts--; f.parts > 0 {
		return nil
	}
	p.inFlight = p.inFlight[1:]
	if len(p.inFlight) > 0 {
		p.overdue.Reset(p.most)
	} else {
		p.overdue.Stop()
	}
	p.completeLocked(f, nil)
	return nil
}

// completeLocked ends f. Of what comes from Consumer raft asks only for the response, and not for the error: where one part has succeeded and
// another one has not arrived, the response must not say success, else raft commits entries that the follower does not have.
func (p *pipeline) completeLocked(f *appendFuture, err error) {
	if f.err = err; err != nil {
		f.resp.Success = false
	}
	close(f.done)
	if len(p.ended) == 0 {
		select {
		case p.ready <- f:
			<-p.window
			return
		default:
		}
	}
	if p.ended = append(p.ended, f); !p.spilling && !p.shut {
		p.spilling = true
		p.spawn(p.spill)
	}
}

// spill moves ended to ready as raft takes futures from there, which it may leave for a while.
func (p *pipeline) spill() {
	for f := p.firstEnded(); f != nil; f = p.nextEnded() {
		select {
		case p.ready <- f:
			<-p.window
		case <-p.closed:
			return
		}
	}
}

func (p *pipeline) firstEnded() *appendFuture {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended[0]
}

// nextEnded drops the first of ended, and returns the next; nil if that was the last.
func (p *pipeline) nextEnded() *appendFuture {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended = p.ended[1:]; len(p.ended) == 0 {
		p.spilling = false
		return nil
	}
	return p.ended[0]
}

// over is the end of the call.
func (p *pipeline) over(_ *hg.Handle, err error) {
	p.mu.Lock()
	begun := p.down.s != nil // begin has returned
	p.mu.Unlock()
	if begun {
		p.arrived() // what has come before
	}
	if err == nil {
		err = qs.Errorf(qs.ErrUnavailable, "raftqs: the follower has ended the pipeline")
	}
	p.end(fmt.Errorf("raftqs: pipeline: %w", err))
	_ = p.h.Close()
}

// end ends the pipeline, unless it has ended: what is in flight fails.
func (p *pipeline) end(err error) {
	p.cancel(err)
	p.h.Abandon()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwatch()
	p.overdue.Stop()
	if p.err != nil {
		return
	}
	p.err = p.cause() // of what came first
	failed := p.inFlight
	p.inFlight = nil
	for _, f := range failed {
		p.completeLocked(f, p.err)
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

// An inbound is a pipeline at the follower. Raft has one request of it at a time: from then until its response has left nothing is read.
//
//	arrived: read ─► offer ─ the main loop waits for a request ─► raft ─► answered ─► serve: send, read, offer …
//	                   └─ it does something else ─► pending, and errPending in answered ─► serve: deliver ─► raft
type inbound struct {
	t        *Transport
	ctx      context.Context
	from     qs.Caller
	up       frameReader
	down     frameWriter
	turn     turn // of up: from a request on until its response has left
	answered chan raft.RPCResponse
	pending  *raft.AppendEntriesRequest // that raft has not taken
	err      error                      // instead of one; io.EOF: none follows
}

// errPending in inbound.answered is not an answer of raft: serve has to go on.
var errPending = errors.New("pending")

// servePipeline serves a pipeline until the leader ends it.
func (t *Transport) servePipeline(r hg.Request) error {
	if s := r.Streams(); len(s) < len(pipelineStreams) || s[0].Up != pipelineStreams[0].Up || s[1].Up != pipelineStreams[1].Up {
		return qs.Errorf(qs.ErrBadInput, "raftqs: a pipeline has a stream up and one down, this call has others")
	}
	in := &inbound{
		t: t, ctx: r.Context(), from: r.Caller(), up: frameReader{s: r.Stream(0)}, down: frameWriter{s: r.Stream(1)},
		answered: make(chan raft.RPCResponse, 1),
	}
	in.up.s.OnReady(in.arrived)
	in.up.s.Expect(maxRequest)
	in.arrived() // from now on it is called when something comes
	if err := in.serve(); err != nil {
		return err
	}
	return r.Respond(nil, nil)
}

// arrived has raft get the next request, if it has come. It is a callback of the node, and does not block.
func (in *inbound) arrived() {
	if in.turn.enter() {
		in.advance()
		runtime.Gosched() // raft goes on here and now, and not on a thread that has to be woken; a third of the commits of one client
	}
}

// advance has raft get the next request, and leaves if none has come.
func (in *inbound) advance() {
	for {
		req, err := in.read()
		if err == nil {
			var known bool
			if known, err = in.tryCheck(req); known && err == nil && in.t.offer(in.rpc(req)) {
				return
			}
		}
		if !isAgain(err) {
			in.pending, in.err = req, err
			in.answered <- raft.RPCResponse{Error: errPending} // there is room: raft has no request
			return
		}
		if in.turn.leave() {
			return
		}
	}
}

// read returns the next request.
func (in *inbound) read() (*raft.AppendEntriesRequest, error) {
	b, err := in.up.next()
	if err != nil {
		return nil, err
	}
	req := &raft.AppendEntriesRequest{}
	if err = decodeOwned(b, req); err != nil {
		return nil, qs.Errorf(qs.ErrBadInput, "%w", err)
	}
	return req, nil
}

// tryCheck is Transport.check in a callback. It reports false if Options.Authorize has panicked: serve asks again, where that is answered as a panic
// of a handler is.
func (in *inbound) tryCheck(req *raft.AppendEntriesRequest) (known bool, err error) {
	defer func() { _ = recover() }()
	err = in.t.check(in.from, req)
	return true, err
}

func (in *inbound) rpc(req *raft.AppendEntriesRequest) raft.RPC {
	return raft.RPC{Command: req, RespChan: in.answered}
}

// serve answers requests until the pipeline ends.
func (in *inbound) serve() error {
	for {
		got, err := in.t.await(in.ctx, in.answered)
		if err != nil {
			return err
		}
		if got.Error == errPending {
			if in.err == io.EOF {
				return nil
			}
			if in.err != nil {
				return in.err
			}
			if err = in.t.check(in.from, in.pending); err != nil {
				return err
			}
			if got, err = in.t.deliver(in.ctx, in.rpc(in.pending), false, in.answered); err != nil {
				return err
			}
		}
		resp, err := answerOf[raft.AppendEntriesResponse](got)
		if err != nil {
			return err
		}
		if err := in.down.send(in.ctx, resp); err != nil {
			return err
		}
		in.advance()
	}
}
