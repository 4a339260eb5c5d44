package grpcqs

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// headerKey is the name under which the header of a stream goes in that of its Duplex.
const headerKey = "grpc"

// A serverStream is what the handler of a stream has: a grpc.ServerStream.
type serverStream struct {
	*serverCall
	d     *qs.DuplexServer[item, *frame]
	first payload // of a call without client streaming: its message
	up    bool    // the client may send more
	took  bool    // the message of such a call
	sent  frame   // encoded last

	trailerErr error // of SetTrailer, which returns none; guarded by mu
}

// serveStream serves a streaming method.
func (s *Server) serveStream(name string, d *grpc.StreamDesc, impl any) {
	info := &grpc.StreamServerInfo{FullMethod: name, IsClientStream: d.ClientStreams, IsServerStream: d.ServerStreams}
	handler := s.streamFrom(0, info, d.Handler)
	qs.DefineDuplex[request, item, *frame](name, qs.WithCodec(wireCodec{})).Handle(s.node,
		func(ctx context.Context, in request, ds *qs.DuplexServer[item, *frame]) error {
			c, err := s.begin(ctx, name, in.md, d.ClientStreams, d.ServerStreams)
			defer c.stop()
			defer c.endPanicked()
			st := &serverStream{serverCall: c, d: ds, first: in.payload, up: d.ClientStreams}
			c.stream = st
			if err == nil {
				err = handler(impl, st)
			}
			c.returned = true
			if err == nil {
				st.mu.Lock()
				err = st.trailerErr
				st.mu.Unlock()
			}
			return st.finish(ctx, handlerStatus(ctx, err))
		})
}

// streamFrom returns what the interceptor before the i-th calls.
func (s *Server) streamFrom(i int, info *grpc.StreamServerInfo, handler grpc.StreamHandler) grpc.StreamHandler {
	if i == len(s.stream) {
		return handler
	}
	return func(impl any, st grpc.ServerStream) error {
		return s.stream[i](impl, st, info, s.streamFrom(i+1, info, handler))
	}
}

// finish says how the call ends.
func (s *serverStream) finish(ctx context.Context, st *status.Status) error {
	e := s.ends(st)
	defer s.endServer(st)
	if ctx.Err() != nil { // nobody reads it
		if e != nil && e.st != nil {
			return e.answerError()
		}
		return nil
	}
	if e == nil {
		return s.head()
	}
	err := s.head()
	if err == nil && (e.st == nil || len(e.bytes()) > maxDetail) {
		err = s.d.Send(&frame{end: e})
	}
	if e.st != nil { // with or without its end
		return e.answerError()
	}
	return err
}

// head sends the header, unless it was sent or is empty.
func (s *serverStream) head() error {
	md, ok := s.takeHeader()
	if !ok {
		return nil
	}
	s.sentHeader(md)
	if len(md) == 0 {
		return nil
	}
	return s.failed(s.d.SendHeader(map[string]string{headerKey: string(appendMetadata(nil, md))}))
}

// Context implements grpc.ServerStream.
func (s *serverStream) Context() context.Context { return s.tagged }

// SetTrailer implements grpc.ServerStream. A trailer that cannot be sent fails a call that would end well.
func (s *serverStream) SetTrailer(md metadata.MD) {
	if err := s.serverCall.SetTrailer(md); err != nil {
		s.mu.Lock()
		s.trailerErr = err
		s.mu.Unlock()
	}
}

// SendMsg implements grpc.ServerStream.
func (s *serverStream) SendMsg(m any) error {
	if err := s.head(); err != nil {
		return err
	}
	s.sent = frame{payload: payload{f: &s.format, msg: m, events: s.events}}
	err := s.d.Send(&s.sent)
	s.sent.msg = nil
	return s.failed(err)
}

// RecvMsg implements grpc.ServerStream.
func (s *serverStream) RecvMsg(m any) error {
	if !s.up && s.took {
		return io.EOF
	}
	p := s.first
	if p.body == nil {
		b, err := s.d.Receive()
		f := frame{}
		if err == nil {
			err = f.decode(b.b)
		}
		if err != nil {
			if err == io.EOF {
				if !s.up {
					return status.Error(codes.Internal, "cardinality violation: received no request message from non-client-streaming RPC")
				}
				return err
			}
			return s.failed(err)
		}
		p = f.payload
	}
	s.first, s.took = payload{}, true
	if p.f = &s.format; p.body == nil {
		return status.Convert(errNoMessage).Err()
	}
	if err := p.into(m); err != nil {
		return err
	}
	s.events.inPayload(m, &p)
	return nil
}

var errNoMessage = status.Error(codes.Internal, "grpcqs: an item without a message")

// failed returns the status of an error of package qs.
func (s *serverStream) failed(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*statusError](err); ok { // the message
		return e.st.Err()
	}
	if cerr := s.serverCall.Err(); cerr != nil {
		return status.FromContextError(cerr).Err()
	}
	return status.New(grpcCode(hg.CodeOf(err)), err.Error()).Err()
}
