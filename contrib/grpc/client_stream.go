package grpcqs

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// NewStream implements grpc.ClientConnInterface. It begins a streaming call without waiting for the
// target. RecvMsg and Header report how the call ends. As with grpc-go, the caller must either call
// RecvMsg until it returns an error or cancel ctx. Otherwise the call leaks.
//
// NewStream returns Unimplemented for a unary method, a name that is too long, or an unknown
// option, and the status of ctx if ctx is done. In these cases nothing was sent.
func (c *Client) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.chainStreamer(0)(ctx, desc, nil, method, opts...)
}

// chainStreamer returns a streamer that runs the interceptors starting at index i, and then the
// call.
func (c *Client) chainStreamer(i int) grpc.Streamer {
	if i == len(c.stream) {
		return c.newStream
	}
	return func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return c.stream[i](ctx, desc, cc, method, c.chainStreamer(i+1), opts...)
	}
}

// newStream begins the call for NewStream without running gRPC interceptors.
func (c *Client) newStream(
	ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string,
	opts ...grpc.CallOption,
) (_ grpc.ClientStream, err error) {
	i := callInfo{format: &c.format}
	if err = i.apply(c.defaults); err == nil {
		err = i.apply(opts)
	}
	if err == nil {
		err = checkMethod(method)
	}
	if err == nil && !desc.ClientStreams && !desc.ServerStreams {
		err = newUnsentError(codes.Unimplemented, "grpcqs: NewStream called with the unary method %s; use Invoke",
			method)
	}
	if err == nil && ctx.Err() != nil {
		st := status.FromContextError(ctx.Err())
		err = newUnsentError(st.Code(), "%s", st.Message())
	}
	if err != nil {
		i.runOnFinish(err)
		return nil, err
	}
	s := &clientStream{
		client:      c,
		info:        i,
		desc:        desc,
		method:      methodKey{method, true, i.waitForReady},
		scheduled:   c.target.Node().HG().NA().Scheduled(),
		headerReady: make(chan struct{}),
		ended:       make(chan struct{}),
	}
	ctx, s.events = c.beginStats(ctx, method, &i, desc.ClientStreams, desc.ServerStreams)
	s.ctx, s.cancel = context.WithCancel(ctx)
	md, err := c.requestMetadata(s.ctx, method, &i)
	if err != nil {
		s.finish(err, nil)
		return nil, err
	}
	s.md = md
	s.events.recordOutHeader(md, c.target)
	if desc.ClientStreams {
		s.ensureStarted()
	}
	s.watchContext(ctx)
	return s, nil
}

// A clientStream is the client side of a streaming call. It implements grpc.ClientStream. As gRPC
// requires, at most one goroutine may send and one may receive at a time.
type clientStream struct {
	client  *Client
	ctx     context.Context // derived from the caller's; finish cancels it
	cancel  context.CancelFunc
	unwatch func() bool // stops watching the caller's context; nil in the simulator
	info    callInfo
	desc    *grpc.StreamDesc
	method  methodKey
	md      metadata.MD // metadata of the request
	events  *statsCall

	scheduled bool // the node runs in a simulated world with a scheduler

	startMu sync.Mutex // held while duplex is being set
	// duplex is the call. Without client streaming it is nil until the request message is known, so
	// that the message can travel in the request itself.
	duplex atomic.Pointer[qs.DuplexCall[*frame, item]]

	sendClosed bool  // CloseSend was called; used by the sending goroutine only
	out        frame // frame to encode, reused by each SendMsg; used by the sending goroutine only

	recvMu         sync.Mutex    // serializes receivers; guards header, headerReceived, in and end
	headerReady    chan struct{} // closed when header is set
	header         metadata.MD
	headerReceived bool
	in             item
	end            *callEnd // set when the last item, which carries the end of the call, has arrived

	mu      sync.Mutex  // guards the fields below
	done    atomic.Bool // set with mu, after err
	err     error       // status of the call; valid if done is true
	trailer metadata.MD
	ended   chan struct{} // closed after done is set and the callbacks of finish have run
}

// watchContext ends the call when ctx is done. In gRPC a program may stop using a stream after it
// has canceled ctx, so the call cannot rely on a receiver to notice.
func (s *clientStream) watchContext(ctx context.Context) {
	hctx := s.client.target.Node().HG()
	if hctx.NA().Scheduled() {
		hctx.NA().Spawn(func() {
			if hctx.Wait(ctx, func() bool { return isClosed(s.ended) }) == nil {
				return
			}
			s.endByContext(ctx)
		})
		return
	}
	stop := context.AfterFunc(ctx, func() { s.endByContext(ctx) })
	s.mu.Lock()
	s.unwatch = stop
	done := s.done.Load()
	s.mu.Unlock()
	if done { // finish ran before unwatch was set
		stop()
	}
}

// isClosed reports whether c is closed, without blocking.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lockRecv acquires recvMu. A coroutine of the simulator polls instead of blocking: since only one
// coroutine runs at a time, blocking would keep the lock's holder from running.
func (s *clientStream) lockRecv() {
	if !s.scheduled {
		s.recvMu.Lock()
		return
	}
	hctx := s.client.target.Node().HG()
	for !s.recvMu.TryLock() {
		_ = hctx.Sleep(context.Background(), time.Millisecond)
	}
}

// endByContext ends the call with the error of ctx, the caller's context, which must be done.
func (s *clientStream) endByContext(ctx context.Context) {
	s.lockRecv()
	defer s.recvMu.Unlock()
	s.startMu.Lock()
	d := s.duplex.Load()
	s.startMu.Unlock()
	if d == nil { // no request was sent
		st := status.FromContextError(ctx.Err())
		s.finish(newUnsentError(st.Code(), "%s", st.Message()), nil)
		return
	}
	for {
		if _, err := d.Receive(); err != nil {
			s.fail(err)
			return
		}
	}
}

// start sends the request and returns the call. The request includes first as its message, unless
// first is nil. If the request was already sent, start returns the existing call, and began is
// false.
func (s *clientStream) start(first []byte) (d *qs.DuplexCall[*frame, item], began bool) {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	if began = s.duplex.Load() == nil; began {
		in := request{s.md, payload{body: first}}
		if first != nil && s.info.compressor != nil {
			in.compressed = true
		}
		s.duplex.Store(s.client.streamMethod(s.method).Call(s.ctx, s.client.target, in))
	}
	return s.duplex.Load(), began
}

// ensureStarted returns the call. If the request has not been sent, it sends the request without a
// message.
func (s *clientStream) ensureStarted() *qs.DuplexCall[*frame, item] {
	d := s.duplex.Load()
	if d == nil {
		d, _ = s.start(nil)
	}
	return d
}

// finish ends the call with err and with e, the end sent by the server, if any. Only the first call
// of finish has an effect. It runs the callbacks of stats handlers and options, so the caller must
// not hold any lock except recvMu.
func (s *clientStream) finish(err error, e *callEnd) {
	s.mu.Lock()
	if s.done.Load() {
		s.mu.Unlock()
		return
	}
	s.err = err
	s.done.Store(true)
	if e != nil {
		s.trailer = e.trailer
	}
	s.trailer = orEmpty(s.trailer)
	unwatch := s.unwatch
	s.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
	s.cancel()
	s.startMu.Lock()
	d := s.duplex.Load()
	s.startMu.Unlock()
	if d != nil {
		d.Close()
	}
	for _, to := range s.info.trailerAddrs {
		*to = s.trailer
	}
	s.info.fillPeers(s.client.target)
	s.events.recordEnd(err, s.trailer)
	s.info.runOnFinish(err)
	close(s.ended)
	if hctx := s.client.target.Node().HG(); hctx.NA().Scheduled() {
		hctx.Wake()
	}
}

// result returns the status with which the call ended. ok is false if the call has not ended.
func (s *clientStream) result() (err error, ok bool) {
	if !s.done.Load() {
		return nil, false
	}
	return s.err, true
}

// Context implements grpc.ClientStream.
func (s *clientStream) Context() context.Context { return s.ctx }

// Trailer implements grpc.ClientStream.
func (s *clientStream) Trailer() metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trailer
}

// Header implements grpc.ClientStream. It blocks until the header arrives or the call ends.
func (s *clientStream) Header() (metadata.MD, error) {
	if s.recvMu.TryLock() {
		defer s.recvMu.Unlock()
		s.receiveHeaderLocked()
	} else { // the goroutine in RecvMsg receives the header first
		select {
		case <-s.headerReady:
		case <-s.ended:
		}
	}
	if isClosed(s.headerReady) && s.header != nil {
		return s.header, nil
	}
	if err, ok := s.result(); ok && err != nil {
		return nil, err
	}
	return metadata.MD{}, nil
}

// receiveHeaderLocked waits for the header, unless it was already received. s.recvMu must be held.
func (s *clientStream) receiveHeaderLocked() error {
	if s.headerReceived {
		return nil
	}
	if err, ok := s.result(); ok {
		return err
	}
	fields, err := s.ensureStarted().Header()
	if err == nil && fields[headerKey] != "" {
		var rest []byte
		if s.header, rest, err = cutMetadata([]byte(fields[headerKey])); err == nil && len(rest) > 0 {
			err = errMalformed
		}
	}
	if err != nil {
		return s.fail(err)
	}
	s.header = orEmpty(s.header)
	s.headerReceived = true
	for _, to := range s.info.headerAddrs {
		*to = s.header
	}
	s.events.recordInHeader(s.header)
	close(s.headerReady)
	return nil
}

// fail ends the call because of an error of package qs, and returns the call's status.
func (s *clientStream) fail(err error) error {
	err, e := toStatusError(err)
	if s.end != nil { // the server sent a status or a trailer, which is more precise than the code of err
		e = s.end
		if e.st != nil {
			err = &statusError{e.st, err}
		}
	}
	s.finish(err, e)
	err, _ = s.result()
	return err
}

// CloseSend implements grpc.ClientStream. It does not block.
func (s *clientStream) CloseSend() error {
	if s.sendClosed {
		return nil
	}
	s.sendClosed = true
	if _, done := s.result(); !done {
		s.ensureStarted().CloseSend()
	}
	return nil
}

// SendMsg implements grpc.ClientStream. It blocks while the target's flow-control window is full.
// It returns io.EOF if the call has ended; RecvMsg then returns the status.
func (s *clientStream) SendMsg(m any) error {
	if _, done := s.result(); done {
		return io.EOF
	}
	if s.sendClosed {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	p := payload{format: s.info.format, msg: m, events: s.events}
	if !s.desc.ClientStreams {
		return s.sendSingle(p)
	}
	s.out = frame{payload: p}
	err := s.ensureStarted().Send(&s.out)
	s.out.msg = nil
	return s.toSendError(err)
}

// sendSingle sends the only message of a call without client streaming and half-closes the call.
// The message travels in the request, or after it if RecvMsg or Header has already sent the
// request.
func (s *clientStream) sendSingle(p payload) error {
	s.sendClosed = true
	b, _, err := p.append(nil)
	if err != nil {
		return s.fail(err)
	}
	if b == nil {
		b = []byte{}
	}
	d, began := s.start(b)
	if !began {
		err = d.Send(&frame{payload: payload{body: b, compressed: s.info.compressor != nil}})
	}
	d.CloseSend()
	return s.toSendError(err)
}

// toSendError converts an error of package qs to the error that SendMsg returns.
func (s *clientStream) toSendError(err error) error {
	switch {
	case err == nil:
		return nil
	case err == io.EOF, s.ctx.Err() != nil:
		return io.EOF
	}
	if e, ok := errors.AsType[*statusError](err); ok { // the message could not be encoded
		err = e
	}
	return s.fail(err)
}

// RecvMsg implements grpc.ClientStream. It blocks until a message arrives or the call ends. After
// the last message of a successful call it returns io.EOF.
func (s *clientStream) RecvMsg(m any) error {
	s.lockRecv()
	defer s.recvMu.Unlock()
	if err, done := s.result(); done && err != nil {
		return err
	} else if done {
		return io.EOF
	}
	if err := s.receiveHeaderLocked(); err != nil {
		return err
	}
	err := s.receiveLocked(m)
	if err == io.EOF {
		if !s.desc.ServerStreams {
			return s.fail(newUnsentError(codes.Internal,
				"cardinality violation: received no response message from non-server-streaming RPC"))
		}
		return s.succeed(io.EOF)
	}
	if err != nil {
		return s.fail(err)
	}
	s.events.recordInItem(m, &s.in)
	if s.desc.ServerStreams {
		return nil
	}
	switch err = s.receiveLocked(nil); err {
	case io.EOF:
		return s.succeed(nil)
	case nil:
		return s.fail(newUnsentError(codes.Internal,
			"cardinality violation: received multiple response messages for non-server-streaming RPC"))
	}
	return s.fail(err)
}

// succeed ends the call without an error and returns result. If the call has already failed, it
// returns the call's status instead.
func (s *clientStream) succeed(result error) error {
	s.finish(nil, s.end)
	if err, _ := s.result(); err != nil { // the caller's context was canceled in between
		return err
	}
	return result
}

// receiveLocked waits for the next message and decodes it into m, unless m is nil. After the last
// message of a successful call it returns io.EOF. s.recvMu must be held.
func (s *clientStream) receiveLocked(m any) error {
	for {
		s.in.format, s.in.into = s.info.format, m
		err := s.ensureStarted().ReceiveInto(&s.in)
		s.in.into = nil
		switch {
		case err == io.EOF && s.end != nil && s.end.st != nil:
			return &endError{s.end}
		case err != nil:
			return err
		case s.in.end != nil:
			s.end = s.in.end
		case !s.in.hasMessage:
			return errNoMessage
		default:
			return s.in.err
		}
	}
}
