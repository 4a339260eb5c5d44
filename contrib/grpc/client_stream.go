package grpcqs

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// NewStream begins a streaming call, and implements grpc.ClientConnInterface. It does not wait for the target, so what becomes of the call
// RecvMsg and Header say, and not NewStream. The rules of gRPC apply: the caller receives until an error, or ends ctx.
func (c *Client) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return c.streamFrom(0)(ctx, desc, nil, method, opts...)
}

// streamFrom returns what the interceptor before the i-th calls.
func (c *Client) streamFrom(i int) grpc.Streamer {
	if i == len(c.stream) {
		return c.newStream
	}
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return c.stream[i](ctx, desc, cc, method, c.streamFrom(i+1), opts...)
	}
}

// newStream is NewStream without interceptors.
func (c *Client) newStream(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, method string, opts ...grpc.CallOption) (_ grpc.ClientStream, err error) {
	i := callInfo{format: &c.format}
	if err = i.apply(c.defaults); err == nil {
		err = i.apply(opts)
	}
	if err == nil {
		err = checkMethod(method)
	}
	if err == nil && !desc.ClientStreams && !desc.ServerStreams {
		err = refused(codes.Unimplemented, "grpcqs: NewStream for %s, which is unary: use Invoke", method)
	}
	if err == nil && ctx.Err() != nil {
		st := status.FromContextError(ctx.Err())
		err = refused(st.Code(), "%s", st.Message())
	}
	if err != nil {
		i.finished(err)
		return nil, err
	}
	s := &clientStream{c: c, info: i, desc: desc, method: methodKey{method, true, i.wait}, headed: make(chan struct{}), over: make(chan struct{})}
	ctx, s.events = c.begin(ctx, method, &i, desc.ClientStreams, desc.ServerStreams)
	s.ctx, s.cancel = context.WithCancel(ctx)
	md, err := c.metadata(s.ctx, method, &i)
	if err != nil {
		s.finish(err, nil)
		return nil, err
	}
	s.md = md
	s.events.outHeader(md, c.to)
	if desc.ClientStreams {
		s.call()
	}
	s.watch(ctx)
	return s, nil
}

// A clientStream is a streaming call: a grpc.ClientStream. One goroutine sends, and one receives.
type clientStream struct {
	c       *Client
	ctx     context.Context
	cancel  context.CancelFunc
	unwatch func() bool
	info    callInfo
	desc    *grpc.StreamDesc
	method  methodKey
	md      metadata.MD
	events  *statsCall

	starting sync.Mutex                   // guards d until started is closed
	d        *qs.DuplexCall[*frame, item] // nil until the message of a call without client streaming is there
	shut     bool                         // CloseSend; of who sends
	sent     frame                        // encoded last, likewise

	receiving sync.Mutex    // one at a time receives
	headed    chan struct{} // closed when header is there, or the call has ended
	header    metadata.MD
	got       bool // headed is closed
	end       *end // has come as an item

	mu      sync.Mutex // guards the fields below
	done    bool
	err     error // the status, once done
	trailer metadata.MD
	over    chan struct{} // closed when done
}

// watch ends the call when ctx does, which says that the program uses it no longer.
func (s *clientStream) watch(ctx context.Context) {
	hctx := s.c.to.Node().HG()
	if hctx.NA().Scheduled() {
		hctx.NA().Spawn(func() {
			if hctx.Wait(ctx, func() bool { return isClosed(s.over) }) == nil {
				return
			}
			s.lockReceiving()
			s.abandon(ctx)
		})
		return
	}
	stop := context.AfterFunc(ctx, func() {
		s.lockReceiving()
		s.abandon(ctx)
	})
	s.mu.Lock()
	s.unwatch = stop
	done := s.done
	s.mu.Unlock()
	if done {
		stop()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lockReceiving takes receiving. A coroutine of the simulator waits for no lock that another has while it waits.
func (s *clientStream) lockReceiving() {
	hctx := s.c.to.Node().HG()
	if !hctx.NA().Scheduled() {
		s.receiving.Lock()
		return
	}
	for !s.receiving.TryLock() {
		_ = hctx.Sleep(context.Background(), time.Millisecond)
	}
}

// abandon ends the call: ctx, which it was made with, has ended. receiving is held, and let go.
func (s *clientStream) abandon(ctx context.Context) {
	defer s.receiving.Unlock()
	s.starting.Lock()
	d := s.d
	s.starting.Unlock()
	if d == nil { // its message has not come
		st := status.FromContextError(ctx.Err())
		s.finish(refused(st.Code(), "%s", st.Message()), nil)
		return
	}
	for {
		if _, err := d.Receive(); err != nil {
			s.fail(err)
			return
		}
	}
}

// start makes the call, with the bytes of a message if there is one, unless it was made: began says which.
func (s *clientStream) start(first []byte) (d *qs.DuplexCall[*frame, item], began bool) {
	s.starting.Lock()
	defer s.starting.Unlock()
	if began = s.d == nil; began {
		in := request{s.md, payload{body: first}}
		if first != nil && s.info.compressor != nil {
			in.compressed = true
		}
		s.d = s.c.streamMethod(s.method).Call(s.ctx, s.c.to, in)
	}
	return s.d, began
}

// call returns the call, which is made if it was not.
func (s *clientStream) call() *qs.DuplexCall[*frame, item] {
	d, _ := s.start(nil)
	return d
}

// finish ends the call, the first time.
func (s *clientStream) finish(err error, e *end) {
	s.mu.Lock()
	if s.done {
		s.mu.Unlock()
		return
	}
	s.done, s.err = true, err
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
	s.starting.Lock()
	d := s.d
	s.starting.Unlock()
	if d != nil {
		d.Close()
	}
	for _, to := range s.info.trailer {
		*to = s.trailer
	}
	s.info.peers(s.c.to)
	s.events.end(err, s.trailer)
	s.info.finished(err)
	close(s.over)
	if hctx := s.c.to.Node().HG(); hctx.NA().Scheduled() {
		hctx.Wake()
	}
}

// result returns how the call has ended; ok is false if it has not.
func (s *clientStream) result() (err error, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err, s.done
}

// Context implements grpc.ClientStream.
func (s *clientStream) Context() context.Context { return s.ctx }

// Trailer implements grpc.ClientStream.
func (s *clientStream) Trailer() metadata.MD {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trailer
}

// Header implements grpc.ClientStream. It blocks until the header has come, or the call has ended.
func (s *clientStream) Header() (metadata.MD, error) {
	if s.receiving.TryLock() {
		defer s.receiving.Unlock()
		s.takeHeader()
	} else { // who receives takes it first
		select {
		case <-s.headed:
		case <-s.over:
		}
	}
	if isClosed(s.headed) && s.header != nil {
		return s.header, nil
	}
	if err, ok := s.result(); ok && err != nil {
		return nil, err
	}
	return metadata.MD{}, nil
}

// takeHeader waits for the header. receiving is held.
func (s *clientStream) takeHeader() error {
	if s.got {
		return nil
	}
	if err, ok := s.result(); ok {
		return err
	}
	fields, err := s.call().Header()
	if err == nil && fields[headerKey] != "" {
		var rest []byte
		if s.header, rest, err = takeMetadata([]byte(fields[headerKey])); err == nil && len(rest) > 0 {
			err = errWire
		}
	}
	if err != nil {
		return s.fail(err)
	}
	s.header = orEmpty(s.header)
	s.got = true
	for _, to := range s.info.header {
		*to = s.header
	}
	s.events.inHeader(s.header)
	close(s.headed)
	return nil
}

// fail ends the call with an error of package qs, and returns its status.
func (s *clientStream) fail(err error) error {
	err, e := ended(err)
	if s.end != nil { // which says more
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
	if s.shut {
		return nil
	}
	s.shut = true
	if _, done := s.result(); !done {
		s.call().CloseSend()
	}
	return nil
}

// SendMsg implements grpc.ClientStream. It blocks while the target has more to receive than is held for it.
func (s *clientStream) SendMsg(m any) error {
	if _, done := s.result(); done {
		return io.EOF
	}
	if s.shut {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	p := payload{f: s.info.format, msg: m, events: s.events}
	if !s.desc.ClientStreams {
		return s.sendOnly(p)
	}
	s.sent = frame{payload: p}
	err := s.call().Send(&s.sent)
	s.sent.msg = nil
	return s.failedToSend(err)
}

// sendOnly sends the message of a call without client streaming, and closes its sending side. It goes in the request, or follows it when RecvMsg
// or Header came first and made the call.
func (s *clientStream) sendOnly(p payload) error {
	s.shut = true
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
	return s.failedToSend(err)
}

// failedToSend returns what SendMsg returns for an error of package qs.
func (s *clientStream) failedToSend(err error) error {
	switch {
	case err == nil:
		return nil
	case err == io.EOF, s.ctx.Err() != nil:
		return io.EOF
	}
	if e, ok := errors.AsType[*statusError](err); ok { // the message
		err = e
	}
	return s.fail(err)
}

// RecvMsg implements grpc.ClientStream. It blocks until there is a message, or the call has ended.
func (s *clientStream) RecvMsg(m any) error {
	s.lockReceiving()
	defer s.receiving.Unlock()
	if err, done := s.result(); done && err != nil {
		return err
	} else if done {
		return io.EOF
	}
	if err := s.takeHeader(); err != nil {
		return err
	}
	p, err := s.receive()
	if err == io.EOF {
		if !s.desc.ServerStreams {
			return s.fail(refused(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC"))
		}
		return s.succeed(io.EOF)
	}
	if err != nil {
		return s.fail(err)
	}
	p.f = s.info.format
	if err = p.into(m); err != nil {
		return s.fail(err)
	}
	s.events.inPayload(m, &p)
	if s.desc.ServerStreams {
		return nil
	}
	switch _, err = s.receive(); err {
	case io.EOF:
		return s.succeed(nil)
	case nil:
		return s.fail(refused(codes.Internal, "cardinality violation: received multiple response messages for non-server-streaming RPC"))
	}
	return s.fail(err)
}

// succeed ends the call, which has gone well, and returns what its program gets.
func (s *clientStream) succeed(with error) error {
	s.finish(nil, s.end)
	if err, _ := s.result(); err != nil { // its context has ended meanwhile
		return err
	}
	return with
}

// receive waits for the next message. The error is io.EOF behind the last of a call that has ended well.
func (s *clientStream) receive() (p payload, err error) {
	for {
		b, err := s.call().Receive()
		f := frame{}
		if err == nil {
			err = f.decode(b.b)
		}
		switch {
		case err == io.EOF && s.end != nil && s.end.st != nil:
			return p, &endError{s.end}
		case err != nil:
			return p, err
		case f.end != nil:
			s.end = f.end
		case f.body == nil:
			return p, errNoMessage
		default:
			return f.payload, nil
		}
	}
}
