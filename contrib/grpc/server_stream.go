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

// headerKey is the Duplex header key under which a stream's entire gRPC header is sent.
const headerKey = "grpc"

// A serverStream is the server side of a streaming call. It implements grpc.ServerStream.
type serverStream struct {
	*serverCall
	duplex        *qs.DuplexServer[item, *frame]
	firstMessage  payload // message contained in the request of a call without client streaming; otherwise empty
	clientStreams bool    // the client may send any number of messages
	received      bool    // RecvMsg has returned a message
	in            item    // item to decode, reused by each RecvMsg
	out           frame   // frame to encode, reused by each SendMsg

	trailerErr error // error of SetTrailer, which cannot return one; guarded by mu
}

// serveStream registers the handler of a streaming method.
func (s *Server) serveStream(name string, d *grpc.StreamDesc, impl any) {
	info := &grpc.StreamServerInfo{
		FullMethod:     name,
		IsClientStream: d.ClientStreams,
		IsServerStream: d.ServerStreams,
	}
	handler := s.chainStreamHandler(0, info, d.Handler)
	qs.DefineDuplex[request, item, *frame](name, qs.WithCodec(wireCodec{})).Handle(s.node,
		func(ctx context.Context, in request, ds *qs.DuplexServer[item, *frame]) error {
			c, err := s.beginCall(ctx, name, in.md, d.ClientStreams, d.ServerStreams)
			defer c.stop()
			defer c.recordPanic()
			st := &serverStream{
				serverCall:    c,
				duplex:        ds,
				firstMessage:  in.payload,
				clientStreams: d.ClientStreams,
			}
			c.stream = st
			if err == nil {
				err = handler(impl, st)
			}
			c.handlerReturned = true
			if err == nil {
				st.mu.Lock()
				err = st.trailerErr
				st.mu.Unlock()
			}
			return st.finish(ctx, handlerStatus(ctx, err))
		})
}

// chainStreamHandler returns a handler that runs the interceptors starting at index i, and then
// handler.
func (s *Server) chainStreamHandler(
	i int, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) grpc.StreamHandler {
	if i == len(s.stream) {
		return handler
	}
	return func(impl any, st grpc.ServerStream) error {
		return s.stream[i](impl, st, info, s.chainStreamHandler(i+1, info, handler))
	}
}

// finish sends the end of the call, with status st, and returns the error that the Duplex handler
// must return. If the call failed and the end fits into maxDetail bytes, that error contains the
// end. Otherwise the end is sent as the last item.
func (s *serverStream) finish(ctx context.Context, st *status.Status) error {
	e := s.buildEnd(st)
	defer s.recordEnd(st)
	if ctx.Err() != nil { // the client has ended the call and reads no more items
		if e != nil && e.st != nil {
			return e.answerError()
		}
		return nil
	}
	if e == nil {
		return s.ensureHeaderSent()
	}
	err := s.ensureHeaderSent()
	if err == nil && (e.st == nil || len(e.bytes()) > maxDetail) {
		err = s.duplex.Send(&frame{end: e})
	}
	if e.st != nil { // the code, with the end as its detail if there is room
		return e.answerError()
	}
	return err
}

// ensureHeaderSent sends the header unless it was already sent or is empty.
func (s *serverStream) ensureHeaderSent() error {
	md, ok := s.claimHeader()
	if !ok {
		return nil
	}
	s.recordHeader(md)
	if len(md) == 0 {
		return nil
	}
	return s.toStatus(s.duplex.SendHeader(map[string]string{headerKey: string(appendMetadata(nil, md))}))
}

// Context implements grpc.ServerStream.
func (s *serverStream) Context() context.Context { return s.tagged }

// SetTrailer implements grpc.ServerStream. If the trailer is invalid, a call that would otherwise
// succeed fails with the reason.
func (s *serverStream) SetTrailer(md metadata.MD) {
	if err := s.serverCall.SetTrailer(md); err != nil {
		s.mu.Lock()
		s.trailerErr = err
		s.mu.Unlock()
	}
}

// SendMsg implements grpc.ServerStream. It blocks while the client's flow-control window is full.
func (s *serverStream) SendMsg(m any) error {
	if err := s.ensureHeaderSent(); err != nil {
		return err
	}
	s.out = frame{payload: payload{format: &s.format, msg: m, events: s.events}}
	err := s.duplex.Send(&s.out)
	s.out.msg = nil
	return s.toStatus(err)
}

// RecvMsg implements grpc.ServerStream. It blocks until a message arrives or the client closes its
// side of the stream.
func (s *serverStream) RecvMsg(m any) error {
	if !s.clientStreams && s.received {
		return io.EOF
	}
	if s.firstMessage.body != nil {
		return s.decodeFirst(m)
	}
	s.in.format, s.in.into = &s.format, m
	err := s.duplex.ReceiveInto(&s.in)
	s.in.into = nil
	switch {
	case err == io.EOF && !s.clientStreams:
		return status.Error(codes.Internal,
			"cardinality violation: received no request message from non-client-streaming RPC")
	case err == io.EOF:
		return err
	case err != nil:
		return s.toStatus(err)
	}
	s.received = true
	switch {
	case !s.in.hasMessage:
		return status.Convert(errNoMessage).Err()
	case s.in.err != nil:
		return s.in.err
	}
	s.events.recordInItem(m, &s.in)
	return nil
}

// decodeFirst decodes the message in the request into m.
func (s *serverStream) decodeFirst(m any) error {
	p := s.firstMessage
	s.firstMessage, s.received = payload{}, true
	p.format = &s.format
	if err := p.decodeInto(m); err != nil {
		return err
	}
	s.events.recordInPayload(m, &p)
	return nil
}

var errNoMessage = status.Error(codes.Internal, "grpcqs: received an item without a message")

// toStatus converts an error of package qs to a status error.
func (s *serverStream) toStatus(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*statusError](err); ok { // the message could not be encoded
		return e.st.Err()
	}
	if cerr := s.serverCall.Err(); cerr != nil {
		return status.FromContextError(cerr).Err()
	}
	return status.New(toGRPCCode(hg.CodeOf(err)), err.Error()).Err()
}
