package qs

import (
	"context"
	"reflect"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A Method is a function of another process, with the types of its input and output. It is declared
// as a package variable that both programs import. In may contain Sources and Sinks in its fields
// and in the fields of nested structs.
type Method[In, Out any] struct {
	m     *method
	calls sync.Pool // of *typedCall, for reuse
}

// Define declares a method. Use it to initialize a package variable. It does not access the
// network. name is global, for example "package/method", and has 1 to 255 bytes. A Node uses one
// codec and one kind (Method, Stream, Upload, Duplex, OneWay) for each name. With a second,
// different definition, calls fail with ErrInvalid and NotRun, and Handle panics.
//
// The two sides may have different definitions, for example in different versions of the program.
// With the default codec, differences have these effects:
//
//   - A field of In, or of an item sent by the caller, that only the caller has: the call is refused
//     with ErrBadInput and NotRun, unless the field is nil, false, 0, "" or empty. A field that only
//     the server has is zero.
//   - A field of Out, or of an item sent by the server, that only the caller has: the caller reports
//     an error after the handler has run, unless the field is a pointer, an interface or omitempty. A
//     field that only the server has is skipped.
//   - A field, an input or an output with another type: ErrBadInput at the server, or an error at
//     the caller. An integer that fits the other side's type is accepted. All these errors name the
//     field.
//   - Unexported fields are not sent. A time.Time arrives as the same instant, in local time.
//   - A Source or Sink may be added or removed like any other field while it is zero. A call with a
//     non-zero one that the server's input lacks is refused with ErrBadInput and NotRun.
//   - Another codec or kind: the call is refused with ErrProtocol and NotRun. The server counts
//     refused one-way requests (hg.Stats.Dropped), but their sender receives no error.
//
// Define panics if
//
//   - the name is too short or too long,
//   - the codec (WithCodec, or msgpack) does not send all of a type, as reported by
//     [codec.TypeChecker] for channels, functions, and structs that have fields but no exported ones,
//   - a Source or Sink is in a place from which it cannot be sent: in a pointer, slice, array or map,
//     in a field that is unexported or omitted by its tag, embedded, or in Out.
//
// A program that sets Config.HG.Codec and uses types that msgpack does not send must also pass the
// codec to WithCodec.
func Define[In, Out any](name string, opts ...Option) *Method[In, Out] {
	return &Method[In, Out]{m: defineMethod(name, opts, schema.Plain, reflect.TypeFor[In](), nil,
		reflect.TypeFor[Out]())}
}

// Name returns the name of m, as found in Call.Method.
func (m *Method[In, Out]) Name() string { return m.m.name }

// Shape describes In and Out as they are encoded on the wire, in the format printed by "qs rpcs":
//
//	{Name string, Size int64} -> string
func (m *Method[In, Out]) Shape() string { return m.m.shape }

// Handle registers fn as the handler of m at n. n calls fn concurrently, once per request, and fn
// may block. The limits are Config.MaxConcurrent requests at a time, the method's MaxConcurrent,
// and 128 requests of one client process (hg.Config.MaxActivePerPeer). A request that exceeds one
// of them waits. For long calls, such as long polls, use a stream. Streams have separate limits and
// do not delay other calls.
//
// The ctx of fn is done at the caller's deadline, when the caller cancels the call, when the
// connection to the caller's process is lost, and when fn has returned. ctx.Err is DeadlineExceeded
// at the deadline, or after a cancellation just before it, and otherwise Canceled. ctx.Deadline
// returns the deadline if less than 71 minutes were left when the request was sent.
//
// The caller receives the text of the error that fn returns. The caller's error matches the
// outermost Code of that error if it is a code for handlers (ErrNotFound to ErrDraining, or 128 to
// 255), and otherwise only hg.ErrRemote. Therefore, a handler that returns its ctx.Err, or the
// error of a call that it made, should wrap it using Errorf with a code. If fn panics, the caller's
// error matches hg.ErrPanic, and the panic is logged at n with its stack.
//
// Handle panics if fn is nil or if n already has a handler for this name.
func (m *Method[In, Out]) Handle(n *Node, fn func(ctx context.Context, in In) (Out, error)) {
	handler := func(r hg.Request) error {
		s := &typedRequest[In, Out]{request: request{requestContext: requestContext{n: n, m: m.m, r: r}}, fn: fn}
		s.request.in, s.request.out = &s.in, &s.out
		defer s.endLent()
		if err := s.decodeInput(); err != nil {
			return err
		}
		err := s.runHandler(s)
		if err == nil { // even if an interceptor has replaced an error by nil
			err = s.flushSinks(s)
		}
		if err == nil {
			err = s.setAnswerMeta(filledMeta, s.filledSinks())
		}
		s.endLent() // before responding, because the caller may then reuse what it lent
		if err != nil {
			return s.onFailure(err)
		}
		return r.Respond(&s.out, nil)
	}
	if n.servesPlain(m.m) {
		handler = plainHandler(n, m.m, fn, handler)
	}
	n.registerHandler(m.m, handler, fn == nil)
}

// A typedRequest is a request together with its typed input and output.
type typedRequest[In, Out any] struct {
	request
	fn  func(context.Context, In) (Out, error)
	in  In
	out Out
}

// handle implements typedHandler.
func (s *typedRequest[In, Out]) handle(ctx context.Context) (err error) {
	if s.out, err = s.fn(ctx, s.in); err == nil {
		err = s.flushSinks(ctx)
	}
	return err
}

// Call calls m at to, and blocks until the response arrives or ctx is done. When ctx is done, the
// call completes immediately regardless of the server, and a cancellation is sent to the server.
// (Reader and Writer document the exceptions for calls that use them.) If ctx has no deadline and
// there is no Config.CallTimeout and no Timeout of the method, Call may block forever. It is safe
// for concurrent use.
//
// The caller must not use the Sources and Sinks of its input until Call returns. After that,
// nothing reads or writes them, even if Call returned an error.
//
// The error matches exactly one of
//
//   - ErrTimeout and context.DeadlineExceeded, or ErrCanceled and context.Canceled: ctx is done. It
//     also matches context.Cause(ctx). An error response of the server that arrives at the same time
//     does not change this.
//   - hg.ErrRemote: the server responded with an error. It also matches the code of the handler's
//     error, or the code with which the library at the server refused the call: ErrNoMethod (it has
//     no such method), ErrDraining (it is shutting down), ErrTimeout (the handler could not start in
//     time), or ErrPermission (Config.Authorize refused without a code).
//   - another code of this package: the request could not be sent, or the response could not be
//     received.
//
// FateOf(err) reports whether the request ran in any of the attempts. A panic in an encoder,
// interceptor or Balancer during the call propagates to the caller of Call.
func (m *Method[In, Out]) Call(ctx context.Context, to Peer, in In) (out Out, err error) {
	err = m.CallInto(ctx, to, in, &out)
	return out, err
}

// CallInto is like Call, but decodes the output into *out, reusing its memory in the manner of the
// codec. Msgpack reuses the capacity of a []byte, adds to a map, and leaves fields unchanged that
// the output omits ("omitempty"). Repeated large outputs can thus share one buffer. After an error,
// the contents of *out are undefined.
func (m *Method[In, Out]) CallInto(ctx context.Context, to Peer, in In, out *Out) error {
	k := m.begin(to, in)
	k.out = *out
	plain := k.isPlain()
	var err error
	if plain {
		err = k.callPlain(ctx)
	} else {
		err = k.run(ctx)
	}
	*out = k.out
	if plain && k.resetPlain(err) {
		var (
			noIn  In
			noOut Out
		)
		k.in, k.out = noIn, noOut
		m.calls.Put(k)
	}
	return err
}

// begin returns a call of m at to, reusing one from the pool if possible.
func (m *Method[In, Out]) begin(to Peer, in In) *typedCall[In, Out] {
	k, _ := m.calls.Get().(*typedCall[In, Out])
	if k == nil {
		k = &typedCall[In, Out]{}
		k.outgoingCall.begin(m.m, to)
		k.Call.In, k.Call.Out = &k.in, &k.out
		k.reply = &k.out
	}
	k.home, k.Peer, k.in = to.p, to, in
	return k
}

// A typedCall is a call together with its typed input and output.
type typedCall[In, Out any] struct {
	outgoingCall
	in  In
	out Out
}

// A OneWay is a method without a response.
type OneWay[In any] struct{ m *method }

// DefineOneWay declares a method without a response. It panics under the same conditions as Define,
// and if In contains Sources or Sinks. A request that exceeds MaxConcurrent and MaxQueue is counted
// at the server (hg.Stats.Dropped), but its sender receives no error.
func DefineOneWay[In any](name string, opts ...Option) *OneWay[In] {
	return &OneWay[In]{defineMethod(name, opts, schema.OneWay, reflect.TypeFor[In](), nil, nil)}
}

// Name returns the name of m, as found in Call.Method.
func (m *OneWay[In]) Name() string { return m.m.name }

// Handle registers fn as the handler of m at n. It is like Method.Handle.
func (m *OneWay[In]) Handle(n *Node, fn func(ctx context.Context, in In)) {
	n.registerHandler(m.m, func(r hg.Request) error {
		s := &typedRequest[In, struct{}]{request: request{requestContext: requestContext{n: n, m: m.m, r: r}}}
		s.request.in = &s.in
		defer s.endLent()
		if err := s.decodeInput(); err != nil {
			return err
		}
		return s.runHandler(handlingFunc(func(ctx context.Context) error {
			fn(ctx, s.in)
			return nil
		}))
	}, fn == nil)
}

// Send sends a request and returns once it has been written to the network. Errors are those
// documented for Method.Call. A nil error does not mean that the request arrives, or that the
// server has a handler for it.
func (m *OneWay[In]) Send(ctx context.Context, to Peer, in In) error {
	k := &typedCall[In, struct{}]{in: in}
	k.begin(m.m, to)
	k.Call.In = &k.in
	return k.callNow(ctx)
}
