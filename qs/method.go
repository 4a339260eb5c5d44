package qs

import (
	"context"
	"reflect"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// A Method is a function of another process, with the types of its input and output. It is a
// package variable that both programs import. In may hold Sources and Sinks in its fields, and in
// those of structs in it.
type Method[In, Out any] struct {
	m     *method
	calls sync.Pool // of *typedCall, for reuse
}

// Define declares a method. Call it to initialize a package variable; it does not use the network.
// name is global, for example "package/method", and has 1 to 255 bytes. A Node uses one codec and
// one kind (Method, Stream, Upload, Duplex, OneWay) for each name: with a second, different
// definition calls fail with ErrInvalid and NotRun, and Handle panics.
//
// The two sides may have different definitions, for example in different versions of the program.
// With the default codec:
//
//   - A field of In, or of an item of the caller, that only the caller has: refused with
//     ErrBadInput and NotRun, unless it is nil, false, 0, "" or empty. A field that only the server
//     has is zero.
//   - A field of Out, or of an item of the server, that only the caller has: an error at the caller
//     after the handler has run, unless it is a pointer, an interface or omitempty. A field that
//     only the server has is skipped.
//   - A field, an input or an output with another type: ErrBadInput at the server, or an error at
//     the caller. An integer that fits the other side's type is accepted. All these errors name the
//     field.
//   - Unexported fields are not sent. A time.Time arrives as the same instant, in local time.
//   - A Source or a Sink may be added or removed like any field while it is zero. A call with one
//     that is not zero, and missing in the server's input, is refused: ErrBadInput, NotRun.
//   - Another codec or kind is refused: ErrProtocol, NotRun. The server counts refused one-way
//     requests (hg.Stats.Dropped); their sender gets no error.
//
// Define panics if the name is too short or too long; if the codec (WithCodec, or msgpack) does not
// send all of a type, as [codec.TypeChecker] reports for chan, func and structs of whose fields none
// is exported (struct{} is sent); and if a Source or a Sink is where it cannot be sent: in a pointer, slice, array or map,
// in a field that is unexported or that its tag leaves out, embedded, or in Out. A program that
// sets Config.HG.Codec, and has types that msgpack does not send, must give the codec to WithCodec
// too.
func Define[In, Out any](name string, opts ...Option) *Method[In, Out] {
	return &Method[In, Out]{m: defineMethod(name, opts, schema.Plain, reflect.TypeFor[In](), nil,
		reflect.TypeFor[Out]())}
}

// Name returns the name of m, as Call.Method has it.
func (m *Method[In, Out]) Name() string { return m.m.name }

// Shape describes In and Out as they are on the wire, as "qs rpcs" prints them:
//
//	{Name string, Size int64} -> string
func (m *Method[In, Out]) Shape() string { return m.m.shape }

// Handle registers fn as the handler of m at n. n calls fn concurrently, once per request, and fn
// may block. The limits are Config.MaxConcurrent requests at a time, MaxConcurrent of the method,
// and 128 of one client process (hg.Config.MaxActivePerPeer); a request beyond one of them waits.
// For long calls, such as long polls, use a stream: streams have separate limits and do not delay
// other calls.
//
// The ctx of fn is done at the caller's deadline, when the caller cancels the call, when the
// caller's process is lost, and when fn has returned. At the deadline, or after a cancel just
// before it, ctx.Err is DeadlineExceeded; otherwise it is Canceled. ctx.Deadline returns the
// deadline if less than 71 minutes were left when the request was sent.
//
// The caller gets the text of the error of fn. The caller's error matches the outermost Code of
// that error, if it is a code for handlers (ErrNotFound to ErrDraining, or 128 to 255), and
// otherwise only hg.ErrRemote. So a handler that returns its ctx.Err, or the error of a call that
// it made, should wrap it by Errorf with a code. A panic of fn is hg.ErrPanic, and logged here with
// its stack.
//
// Handle panics if fn is nil, or if n already has a handler for this name.
func (m *Method[In, Out]) Handle(n *Node, fn func(ctx context.Context, in In) (Out, error)) {
	handler := func(r hg.Request) error {
		s := &typedRequest[In, Out]{request: request{requestContext: requestContext{n: n, m: m.m, r: r}}, fn: fn}
		s.request.in, s.request.out = &s.in, &s.out
		defer s.endLent()
		if err := s.decodeInput(); err != nil {
			return err
		}
		err := s.runHandler(s)
		if err == nil { // also if an interceptor has replaced an error by nil
			err = s.flushSinks(s)
		}
		if err == nil {
			err = s.setAnswerMeta(filledMeta, s.filledSinks())
		}
		s.endLent() // before the answer: the caller may reuse what it lent
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

// A typedRequest is one request with its types.
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

// Call calls m at to, and blocks until the response arrives or ctx is done. When ctx is done the
// call ends at once, whatever the server does, and a cancel is sent to the server (see Reader and
// Writer for calls with these). Without a deadline of ctx, Config.CallTimeout or Timeout of the
// method, it may block forever. It is safe for concurrent use.
//
// Sources and Sinks in in must not be used until Call returns; after that nothing reads or writes
// them, whatever the error.
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
//   - another code of this package: the request could not be sent, or the response not be received.
//
// FateOf(err) reports whether the request ran, over all attempts. A panic of the program's code in
// the call, in an encoder, an interceptor or a Balancer, is a panic of Call.
func (m *Method[In, Out]) Call(ctx context.Context, to Peer, in In) (out Out, err error) {
	err = m.CallInto(ctx, to, in, &out)
	return out, err
}

// CallInto is like Call, but decodes the output into *out and reuses its memory as the codec does:
// Msgpack reuses the capacity of a []byte, adds to a map, and does not change fields that the
// output omits ("omitempty"). So repeated large outputs can share one buffer. After an error the
// contents of *out are undefined.
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

// begin returns the call of m to a Peer, from the pool if possible.
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

// A typedCall is one call with its types.
type typedCall[In, Out any] struct {
	outgoingCall
	in  In
	out Out
}

// A OneWay is a method without an answer.
type OneWay[In any] struct{ m *method }

// DefineOneWay declares a method without an answer. It panics as Define does; In holds no Sources
// and Sinks. A request beyond MaxConcurrent and MaxQueue is counted at the server
// (hg.Stats.Dropped); its sender gets no error.
func DefineOneWay[In any](name string, opts ...Option) *OneWay[In] {
	return &OneWay[In]{defineMethod(name, opts, schema.OneWay, reflect.TypeFor[In](), nil, nil)}
}

// Name returns the name of m, as Call.Method has it.
func (m *OneWay[In]) Name() string { return m.m.name }

// Handle registers fn as the handler of m at n, as Method.Handle does.
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

// Send sends a request, and returns when it was written to the network. Its errors are those of
// Call. A nil error does not mean that the request arrives, or that the server has a handler for
// it.
func (m *OneWay[In]) Send(ctx context.Context, to Peer, in In) error {
	k := &typedCall[In, struct{}]{in: in}
	k.begin(m.m, to)
	k.Call.In = &k.in
	return k.callNow(ctx)
}
