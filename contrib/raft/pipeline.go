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

// A pipeline is the leader's side of one call to a follower, which has a stream for requests and
// one for responses. It has no goroutine of its own. AppendEntries and inboundPipeline.serve write
// to the connection directly. The nodes run two callbacks: inboundPipeline.onRequests receives
// requests and passes them to raft's main loop, and onResponses receives responses and sends
// completed futures to Consumer.
type pipeline struct {
	handle       *hg.Handle
	requests     frameWriter
	responses    frameReader
	responseLock notifyLock      // held by the goroutine that is reading responses
	ctx          context.Context // canceled by the first error or by Close
	cancel       context.CancelCauseFunc
	window       chan struct{}          // semaphore with one element per request in flight or completed, plus one
	ready        chan raft.AppendFuture // completed futures, for Consumer
	closed       chan struct{}          // closed by Close
	timeout      time.Duration          // see Options.Timeout
	spawn        func(func())           // starts a goroutine, or a coroutine in the simulator

	mu            sync.Mutex      // guards the fields below; start holds it while it makes the call
	unwatch       func() bool     // stops watching the Transport's context
	inFlight      []*appendFuture // requests that await a response, oldest first
	responseTimer *time.Timer     // runs while a request is in flight
	completed     []*appendFuture // completed futures that did not fit into ready, oldest first
	forwarding    bool            // a goroutine is running forwardCompleted
	err           error           // error that ended the pipeline; nil while it is open
	closeCalled   bool
}

// pipelineStreams specifies the streams of a pipeline's call: requests from the leader and
// responses from the follower.
var pipelineStreams = []hg.StreamSpec{{Up: true, Bulk: true}, {}}

// AppendEntriesPipeline implements raft.Transport. It resolves the follower's name but does not
// wait for a connection. The pipeline ends with its first error, or if the oldest response takes
// longer than Options.Timeout. Raft then closes it and opens another one.
func (t *Transport) AppendEntriesPipeline(
	id raft.ServerID,
	target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	if t.opts.MaxInFlight < 2 {
		return nil, raft.ErrPipelineReplicationNotSupported
	}
	start, stop := t.node.HG().NA().WithTimeout(t.ctx, t.opts.Timeout)
	defer stop()
	peer, err := t.peerFor(start, id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{
		window:  make(chan struct{}, t.opts.MaxInFlight),
		ready:   make(chan raft.AppendFuture, t.opts.MaxInFlight),
		closed:  make(chan struct{}),
		timeout: t.opts.Timeout,
		spawn:   t.node.HG().NA().Spawn,
	}
	p.window <- struct{}{}
	p.ctx, p.cancel = context.WithCancelCause(t.ctx)
	p.responseTimer = time.AfterFunc(p.timeout, func() {
		p.fail(qs.Errorf(qs.ErrTimeout, "raftqs: pipeline to server %s: no response for %v", id,
			p.timeout))
	})
	p.responseTimer.Stop()
	if p.handle, err = t.node.HG().Create(peer.Addr(), t.pipelineID); err != nil {
		p.cancel(err)
		return nil, err
	}
	if err = p.start(t.ctx); err != nil {
		p.fail(err)
		_ = p.handle.Close()
		return nil, p.cause()
	}
	p.onResponses() // handle a response that arrived before OnReady was set
	return p, nil
}

// start makes the call. It arranges for the pipeline to fail when transport, which is the
// Transport's context, is done. That context may be done already.
func (p *pipeline) start(transport context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwatch = context.AfterFunc(transport, func() { p.fail(context.Cause(transport)) })
	if err := p.handle.SetStreams(pipelineStreams...); err != nil {
		return err
	}
	if err := p.handle.Forward(nil, p.onCallEnd); err != nil {
		return err
	}
	p.requests.stream, p.responses.stream = p.handle.Stream(0), p.handle.Stream(1)
	p.responses.stream.OnReady(p.onResponses)
	return nil
}

// AppendEntries implements raft.AppendPipeline. It sends a request, and then blocks while
// Options.MaxInFlight requests are in flight. Raft composes the next request when AppendEntries
// returns, so that request contains all entries that have arrived in the meantime. AppendEntries is
// not safe for concurrent use.
func (p *pipeline) AppendEntries(
	args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	parts := splitRequest(args)
	f := &appendFuture{
		start:   time.Now(),
		args:    args,
		resp:    resp,
		missing: len(parts),
		done:    make(chan struct{}),
	}
	if err := p.enqueue(f); err != nil {
		return nil, err
	}
	for _, part := range parts {
		if err := p.requests.send(p.ctx, part); err != nil {
			p.fail(err)
			return nil, p.cause()
		}
	}
	select {
	case p.window <- struct{}{}:
		return f, nil // f may already have failed
	default:
	}
	select {
	case p.window <- struct{}{}:
		return f, nil
	case <-p.ctx.Done():
		return nil, p.cause()
	}
}

// Consumer implements raft.AppendPipeline. Futures arrive in the order of their requests, including
// failed ones.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.ready }

// Close implements raft.AppendPipeline. It does not block. Requests in flight fail with
// raft.ErrPipelineShutdown.
func (p *pipeline) Close() error {
	p.mu.Lock()
	shut := p.closeCalled
	p.closeCalled = true
	p.mu.Unlock()
	if !shut {
		close(p.closed)
		p.fail(raft.ErrPipelineShutdown)
	}
	return nil
}

// enqueue appends f to the requests in flight. If the pipeline has ended, it returns the error that
// ended it.
func (p *pipeline) enqueue(f *appendFuture) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if len(p.inFlight) == 0 {
		p.responseTimer.Reset(p.timeout)
	}
	p.inFlight = append(p.inFlight, f)
	return nil
}

// onResponses handles the responses that have arrived. It is a callback of the node and does not
// block.
func (p *pipeline) onResponses() {
	if !p.responseLock.tryLock() {
		return
	}
	for {
		b, err := p.responses.next()
		var resp raft.AppendEntriesResponse
		switch {
		case isAgain(err):
			if p.responseLock.tryUnlock() {
				runtime.Gosched() // let raft's goroutine run on this thread; see inboundPipeline.onRequests
				return
			}
			continue
		case err != nil: // onCallEnd runs next, with a more precise error
			return
		}
		if err = (wireCodec{}).Decode(b, &resp); err == nil {
			err = p.handleResponse(&resp)
		}
		if err != nil {
			p.fail(err)
			return
		}
	}
}

// handleResponse assigns a response to the oldest request in flight. A request completes when the
// response to its last part arrives.
func (p *pipeline) handleResponse(resp *raft.AppendEntriesResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.inFlight) == 0 {
		return qs.Errorf(qs.ErrInternal, "raftqs: pipeline: response without a request")
	}
	f := p.inFlight[0]
	if !f.rejected {
		*f.resp = *resp // keep the first rejection, or otherwise the last response
		f.rejected = !resp.Success
	}
	if f.missing--; f.missing > 0 {
		return nil
	}
	p.inFlight = p.inFlight[1:]
	if len(p.inFlight) > 0 {
		p.responseTimer.Reset(p.timeout)
	} else {
		p.responseTimer.Stop()
	}
	p.completeLocked(f, nil)
	return nil
}

// completeLocked completes f. If err is not nil, it clears Success in the response. Raft checks the
// response of a future from Consumer but not its error. If one part succeeded and another was lost,
// raft would otherwise commit entries that the follower does not have. p.mu must be held.
func (p *pipeline) completeLocked(f *appendFuture, err error) {
	if f.err = err; err != nil {
		f.resp.Success = false
	}
	close(f.done)
	if len(p.completed) == 0 {
		select {
		case p.ready <- f:
			<-p.window
			return
		default:
		}
	}
	if p.completed = append(p.completed, f); !p.forwarding && !p.closeCalled {
		p.forwarding = true
		p.spawn(p.forwardCompleted)
	}
}

// forwardCompleted moves futures from completed to ready as raft receives them. It runs only after
// ready was full.
func (p *pipeline) forwardCompleted() {
	for f := p.firstCompleted(); f != nil; f = p.popCompleted() {
		select {
		case p.ready <- f:
			<-p.window
		case <-p.closed:
			return
		}
	}
}

// firstCompleted returns the first element of completed, which must not be empty.
func (p *pipeline) firstCompleted() *appendFuture {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.completed[0]
}

// popCompleted removes the first element of completed. It returns the element after it, or nil if
// there is none.
func (p *pipeline) popCompleted() *appendFuture {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.completed = p.completed[1:]; len(p.completed) == 0 {
		p.forwarding = false
		return nil
	}
	return p.completed[0]
}

// onCallEnd is the completion callback of the call.
func (p *pipeline) onCallEnd(_ *hg.Handle, err error) {
	p.mu.Lock()
	started := p.responses.stream != nil // false if start failed after Forward, when this callback was already queued
	p.mu.Unlock()
	if started {
		p.onResponses() // handle responses that arrived before the call completed
	}
	if err == nil {
		err = qs.Errorf(qs.ErrUnavailable, "raftqs: pipeline closed by the follower")
	}
	p.fail(fmt.Errorf("raftqs: pipeline: %w", err))
	_ = p.handle.Close()
}

// fail ends the pipeline and fails all requests in flight. Only the first invocation has an effect.
func (p *pipeline) fail(err error) {
	p.cancel(err)
	p.handle.Abandon()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unwatch()
	p.responseTimer.Stop()
	if p.err != nil {
		return
	}
	p.err = p.cause() // the error of the first cancel, which may differ from err
	failed := p.inFlight
	p.inFlight = nil
	for _, f := range failed {
		p.completeLocked(f, p.err)
	}
}

// cause returns the error with which ctx was canceled.
func (p *pipeline) cause() error { return context.Cause(p.ctx) }

// An appendFuture is one request of a pipeline. It implements raft.AppendFuture.
type appendFuture struct {
	start    time.Time
	args     *raft.AppendEntriesRequest
	resp     *raft.AppendEntriesResponse
	missing  int  // number of parts that await a response; guarded by pipeline.mu
	rejected bool // a part was rejected; guarded by pipeline.mu

	done chan struct{}
	err  error // valid once done is closed
}

// Error implements raft.AppendFuture. It blocks until the request completes.
func (f *appendFuture) Error() error {
	<-f.done
	return f.err
}

// Start, Request and Response implement raft.AppendFuture.
func (f *appendFuture) Start() time.Time                      { return f.start }
func (f *appendFuture) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *appendFuture) Response() *raft.AppendEntriesResponse { return f.resp }

// An inboundPipeline is the follower's side of a pipeline. Raft handles at most one of its requests
// at a time. After passing a request to raft, the inboundPipeline does not read another one until
// it has sent the response.
//
// onRequests reads a request and offers it to raft's main loop, which replies on the channel
// replies. If the main loop does not accept the request at once, onRequests stores the request in
// pending and sends errNotOffered to replies. If reading fails, it stores the error in readErr and
// does the same. serve receives from replies, delivers a pending request, sends each response, and
// offers the next request.
type inboundPipeline struct {
	transport   *Transport
	ctx         context.Context
	caller      qs.Caller
	requests    frameReader
	responses   frameWriter
	requestLock notifyLock // guards requests; held from reading a request until its response has been sent
	replies     chan raft.RPCResponse
	pending     *raft.AppendEntriesRequest // request that raft did not accept at once; nil if there is a readErr
	readErr     error                      // error from reading the next request; io.EOF after the last one
}

// errNotOffered is sent to inboundPipeline.replies in place of a reply from raft. On receiving it,
// serve must handle pending or readErr.
var errNotOffered = errors.New("pending")

// servePipeline serves a pipeline until the leader ends it.
func (t *Transport) servePipeline(r hg.Request) error {
	if s := r.Streams(); len(s) < len(pipelineStreams) || s[0].Up != pipelineStreams[0].Up ||
		s[1].Up != pipelineStreams[1].Up {
		return qs.Errorf(qs.ErrBadInput,
			"raftqs: pipeline: want one stream in each direction")
	}
	in := &inboundPipeline{
		transport: t,
		ctx:       r.Context(),
		caller:    r.Caller(),
		requests:  frameReader{stream: r.Stream(0)},
		responses: frameWriter{stream: r.Stream(1)},
		replies:   make(chan raft.RPCResponse, 1),
	}
	in.requests.stream.OnReady(in.onRequests)
	in.requests.stream.Expect(maxRequest)
	in.onRequests() // handle a request that arrived before OnReady was set
	if err := in.serve(); err != nil {
		return err
	}
	return r.Respond(nil, nil)
}

// onRequests passes the next request to raft if one has arrived. It is a callback of the node and
// does not block.
func (in *inboundPipeline) onRequests() {
	if in.requestLock.tryLock() {
		in.offerNext()
		// Let raft's goroutine run on this thread now. Otherwise another thread would have to be
		// woken for it, which reduces a single client's commits per second by a third.
		runtime.Gosched()
	}
}

// offerNext reads the next request and offers it to raft. requestLock must be held when it is
// called. offerNext releases requestLock if no request has arrived, and keeps it otherwise.
func (in *inboundPipeline) offerNext() {
	for {
		req, err := in.readRequest()
		if err == nil {
			var ok bool
			if ok, err = in.tryAuthorize(req); ok && err == nil && in.transport.offer(in.newRPC(req)) {
				return
			}
		}
		if !isAgain(err) {
			in.pending, in.readErr = req, err
			// This send never blocks, because raft has no request and replies is therefore empty.
			in.replies <- raft.RPCResponse{Error: errNotOffered}
			return
		}
		if in.requestLock.tryUnlock() {
			return
		}
	}
}

// readRequest reads and decodes the next request without blocking. Errors are those documented for
// frameReader.next.
func (in *inboundPipeline) readRequest() (*raft.AppendEntriesRequest, error) {
	b, err := in.requests.next()
	if err != nil {
		return nil, err
	}
	req := &raft.AppendEntriesRequest{}
	if err = decodeOwned(b, req); err != nil {
		return nil, qs.Errorf(qs.ErrBadInput, "%w", err)
	}
	return req, nil
}

// tryAuthorize calls Transport.authorize from a callback. It returns false if Options.Authorize
// panicked. In this case serve calls Authorize again on the handler's goroutine, where package hg
// recovers the panic and answers the call.
func (in *inboundPipeline) tryAuthorize(req *raft.AppendEntriesRequest) (ok bool, err error) {
	defer func() { _ = recover() }()
	err = in.transport.authorize(in.caller, req)
	return true, err
}

// newRPC returns the raft.RPC that passes req to raft.
func (in *inboundPipeline) newRPC(req *raft.AppendEntriesRequest) raft.RPC {
	return raft.RPC{Command: req, RespChan: in.replies}
}

// serve sends the response to each request, in order, until the leader ends the pipeline.
func (in *inboundPipeline) serve() error {
	for {
		got, err := in.transport.awaitReply(in.ctx, in.replies)
		if err != nil {
			return err
		}
		if got.Error == errNotOffered {
			if in.readErr == io.EOF {
				return nil
			}
			if in.readErr != nil {
				return in.readErr
			}
			if err = in.transport.authorize(in.caller, in.pending); err != nil {
				return err
			}
			if got, err = in.transport.deliver(in.ctx, in.newRPC(in.pending), false,
				in.replies); err != nil {
				return err
			}
		}
		resp, err := typedResponse[raft.AppendEntriesResponse](got)
		if err != nil {
			return err
		}
		if err := in.responses.send(in.ctx, resp); err != nil {
			return err
		}
		in.offerNext()
	}
}
