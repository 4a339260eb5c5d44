package qs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// registerHandler registers h as the handler of m. isNil reports whether the function that h calls
// is nil. registerHandler panics if it is, or if the node already serves a method of this name.
func (n *Node) registerHandler(m *method, h hg.Handler, isNil bool) {
	if isNil {
		panic(fmt.Sprintf("qs: method %s: the handler is nil", m.name))
	}
	is, c := n.describeDefinition(m), n.codecOf(m)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.useDefinitionLocked(m.name, is); err != nil {
		panic(fmt.Sprintf("qs: method %s: %s", m.name, errtext.Cause(err)))
	}
	rpc := hg.RPC{Name: m.name, Handler: n.clients.limitHandler(h), OneWay: m.oneWay, Inline: m.o.inline,
		MaxActive: m.o.maxConcurrent, Queue: m.o.maxQueue, Timeout: m.o.timeout, Codec: c, Shape: m.shape}
	// A registration without a handler was made by idOf, for a call.
	if was, ok := n.class.Registered(m.name); ok && was.Handler != nil {
		panic(fmt.Sprintf("qs: method %s already has a handler",
			m.name))
	}
	if err := hghook.RegisterRPC(n.class, rpc,
		hghook.RPCOptions{CountAsCall: m.streams == nil}); err != nil {
		panic(fmt.Sprintf("qs: method %s: %s", m.name, errtext.Cause(err)))
	}
}

// authorize implements hg.Config.Authorize by calling Config.Authorize.
func (n *Node) authorize(ctx context.Context, from Caller, rpc *hg.RPC) error {
	r, ok := ctx.Value(hghook.RequestKey{}).(hg.Request)
	if !ok {
		return Errorf(ErrPermission, "the request has ended")
	}
	p := &peer{n: n, i: r.HG().ID(), single: &backend{addr: from.Addr}}
	return n.cfg.Authorize(ctx, &Call{Method: rpc.Name, Peer: Peer{p}, Metadata: r.Meta().WithoutOwn(),
		Attempt: 1, in: r})
}

// A requestContext is the context of a handler. Its Call is allocated only when an interceptor or
// CallFrom needs it, which is rare.
type requestContext struct {
	n        *Node
	m        *method
	r        hg.Request
	lazyCall atomic.Pointer[lazyCall] // nil until first needed
}

// A plainRequest is an incoming call that only its handler can access: there are no interceptors,
// no Sources or Sinks, and no per-client limits. It also serves as the handler's context.
type plainRequest[In, Out any] struct {
	requestContext
	in  In
	out Out
}

// plainHandler returns a handler that serves requests of m as plainRequests. It passes a request
// with metadata to other, because the caller may have defined the method differently. The response
// is sent when fn has returned.
func plainHandler[In, Out any](
	n *Node, m *method, fn func(context.Context, In) (Out, error), other hg.Handler,
) hg.Handler {
	decode := n.codecOf(m).decodeSent
	return func(r hg.Request) error {
		s := &plainRequest[In, Out]{requestContext: requestContext{n: n, m: m, r: r}}
		plain, err := hghook.DecodePlain(&s.r, decode, &s.in)
		switch {
		case !plain:
			return other(r)
		case err != nil:
			return hg.Refuse(err)
		}
		if s.out, err = fn(s, s.in); err == nil && s.lazyCall.Load() != nil {
			err = s.setAnswerMeta("", "")
		}
		if err != nil {
			return s.onFailure(err)
		}
		return hghook.AnswerOnReturn(&s.r, &s.out)
	}
}

// Value implements context.Context.
func (s *plainRequest[In, Out]) Value(key any) any {
	if key == (callKey{}) {
		return s.callOf(&s.in, &s.out)
	}
	return s.requestContext.Value(key)
}

// A request is an incoming call that may have interceptors, Sources, Sinks and per-client limits.
// It also serves as the handler's context.
type request struct {
	requestContext
	in, out any         // pointers to the input and output; out is nil if there is no output
	lent    []lentField // Sources and Sinks of the input
	// ctx is the context that the last interceptor passed to next. It is nil before the handler
	// begins, and if there are no interceptors.
	ctx context.Context

	flushed  bool  // flushSinks has been called
	flushErr error // error returned by flushSinks

	mu          sync.Mutex    // guards the fields below
	begun       bool          // the handler has been called
	handlerDone chan struct{} // closed when the handler has returned; nil until it begins
	returned    bool          // the interceptors have returned
}

// A lazyCall is the Call of a request, together with the Peer to which it refers.
type lazyCall struct {
	Call
	from   peer
	origin backend
}

// servesPlain reports whether n serves requests of m as plainRequests.
func (n *Node) servesPlain(m *method) bool {
	return len(m.fields) == 0 && len(n.cfg.ServerInterceptors) == 0 && len(n.clients.limits) == 0
}

// callOf returns the Call of the request, with in and out as pointers to its input and output. It
// allocates the Call on first use.
func (s *requestContext) callOf(in, out any) *Call {
	if a := s.lazyCall.Load(); a != nil {
		return &a.Call
	}
	a := &lazyCall{from: peer{n: s.n, i: s.r.HG().ID()}, origin: backend{addr: s.r.Peer()}}
	a.from.single = &a.origin
	a.Call = Call{Method: s.m.name, Idempotent: s.m.o.idempotent, Peer: Peer{&a.from},
		Metadata: s.r.Meta().WithoutOwn(), In: in, Out: out, Attempt: 1, in: s.r,
		lends: len(s.m.fields) > 0 || s.m.streams != nil}
	if !s.lazyCall.CompareAndSwap(nil, a) { // another goroutine has allocated it in the meantime
		a = s.lazyCall.Load()
	}
	return &a.Call
}

// decodeInput decodes the input and prepares its Sources and Sinks. Its error is marked with
// hg.Refuse or hghook.RefuseByLibrary, so that the caller's error has the fate NotRun.
func (s *request) decodeInput() (err error) {
	meta := s.r.Meta()
	if err := s.m.checkAgreement(s.r); err != nil {
		return hghook.RefuseByLibrary(err)
	}
	err = addFieldName(meta, s.r.Input((*decodedInput)(s)))
	// The unknown field may be a Source or a Sink, in which case checkTickets returns an error with
	// its name.
	if err == nil || errors.Is(err, codec.ErrUnknownField) {
		s.attachLent()
		if lost := s.m.checkTickets(meta, s.lent); lost != nil {
			err = lost
		}
	}
	if err == nil && len(s.lent) > 0 {
		err = s.takeStreams()
	}
	if err != nil {
		err = hg.Refuse(err)
	} else if len(s.lent) > 0 {
		hghook.ReportRequest(&s.r, s)
	}
	return err
}

// Report implements hghook.Reporter.
func (s *request) Report(c *inspect.Call) {
	known := true
	for i := range s.lent {
		t := s.lent[i].ticket()
		if t == nil {
			continue
		}
		c.Moved += t.movedBytes()
		c.Size += t.size()
		known = known && !t.isStream() && s.lent[i].sink == nil // a handler need not fill a Sink
	}
	if !known {
		c.Size = 0
	}
}

// A typedHandler is a handler together with its decoded input.
type typedHandler interface {
	handle(ctx context.Context) error
}

// A handlingFunc implements typedHandler.
type handlingFunc func(ctx context.Context) error

func (f handlingFunc) handle(ctx context.Context) error { return f(ctx) }

// runHandler calls h. If the node has server interceptors, they wrap the call.
func (s *request) runHandler(h typedHandler) error {
	is := s.n.cfg.ServerInterceptors
	if len(is) == 0 {
		return h.handle(s)
	}
	return s.runWithin(is, h)
}

// runWithin calls the interceptors in is, which wrap the call of h. If none of them calls next, the
// request is refused.
func (s *request) runWithin(is []Interceptor, h typedHandler) error {
	ctx, leave := context.WithCancel(s)
	defer leave()
	returned := false
	// If an interceptor panics or calls runtime.Goexit before the handler has begun, refuse the
	// request. Otherwise package hg would respond as if the handler had run and panicked.
	defer func() {
		if !returned && !s.closeHandler(leave) && !s.m.oneWay {
			_ = s.r.RespondError(hg.Refuse(hg.Errorf(hg.ErrPanic,
				"an interceptor of %s panicked or called runtime.Goexit before the handler started; see the server's log",
				s.m.name)), nil)
		}
	}()
	err := chainAround(ctx, is, s.callOf(s.in, s.out), func(ctx context.Context) error {
		if err := s.checkBegin(); err != nil {
			return err
		}
		defer s.onReturn()
		s.ctx = ctx
		return h.handle(ctx)
	})
	if returned = true; !s.closeHandler(leave) {
		err = hg.Refuse(err)
	}
	return err
}

var errNextTwice = na.WithText(ErrInvalid,
	"a server interceptor called next twice")

// checkBegin marks the handler as begun. It returns an error if the handler has already begun or if
// the interceptors have returned.
func (s *request) checkBegin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.begun:
		return errNextTwice
	case s.returned:
		return errNextLate
	}
	s.begun, s.handlerDone = true, make(chan struct{})
	return nil
}

// onReturn marks the handler as returned and wakes closeHandler.
func (s *request) onReturn() {
	s.mu.Lock()
	late := s.returned
	close(s.handlerDone)
	s.mu.Unlock()
	if late {
		s.r.HG().Wake()
	}
}

// closeHandler prevents the handler from beginning and reports whether it has already begun. If the
// handler is still running, in a goroutine started by an interceptor, closeHandler cancels its
// context with leave and waits for it to return.
func (s *request) closeHandler(leave func()) (begun bool) {
	s.mu.Lock()
	s.returned = true
	begun, quiet := s.begun, s.handlerDone
	s.mu.Unlock()
	if begun && !isClosed(quiet) {
		leave()
		_ = s.n.awaitDone(context.Background(), s.r.HG().ID(), quiet)
	}
	return begun
}

// handlerContext returns the context for the handler's operations that have no context parameter,
// such as ReadAt.
func (s *request) handlerContext() context.Context {
	if s.ctx == nil {
		return s
	}
	return s.ctx
}

// flushSinks flushes the Sinks, after which they can no longer be used. It blocks until they are
// flushed or ctx is done. Further calls return the error of the first one. The first call is made
// inside the interceptors, so that they receive the error.
func (s *request) flushSinks(ctx context.Context) (err error) {
	if s.flushed {
		return s.flushErr
	}
	s.flushed = true
	defer func() { s.flushErr = err }()
	for i := range s.lent {
		if f := &s.lent[i]; f.sink != nil {
			n, end, ferr := f.sink.flush(ctx)
			if ferr != nil && err == nil {
				err = ferr
			}
			f.filled = sinkFill{n, end}
		}
	}
	return err
}

// answerMeta returns the response metadata set by the handler and the interceptors.
func (s *requestContext) answerMeta() (m hg.Metadata) {
	if a := s.lazyCall.Load(); a != nil {
		m = a.ResponseMetadata.WithoutOwn()
	}
	return m
}

// setAnswerMeta sets the metadata of the response. If value is not empty, it is added under name,
// which is one of the names reserved for this package.
func (s *requestContext) setAnswerMeta(name, value string) (err error) {
	m := s.answerMeta()
	if value != "" {
		if m, err = m.WithOwn(name, value); err != nil {
			return err
		}
	}
	if m.IsZero() {
		return nil
	}
	return s.r.SetOutputMeta(m)
}

// onFailure sets the metadata of the response for a handler that returned err, and returns err.
func (s *requestContext) onFailure(err error) error {
	_ = s.r.SetOutputMeta(s.answerMeta()) // an error here must not replace err
	return err
}

// endLent makes the Sources and Sinks unusable and releases the share of the client's limits that
// the request holds. The handler must have returned or panicked.
func (s *request) endLent() {
	for i := range s.lent {
		s.lent[i].end()
	}
	if len(s.n.clients.limits) > 0 {
		s.n.clients.returnShare(s.r)
	}
}

// Deadline implements context.Context.
func (s *requestContext) Deadline() (time.Time, bool) {
	if _, ok := s.r.TimeLeft(); !ok {
		return time.Time{}, false
	}
	return s.r.Context().Deadline()
}

// Done implements context.Context.
func (s *requestContext) Done() <-chan struct{} { return s.r.Context().Done() }

// Err implements context.Context.
func (s *requestContext) Err() error { return s.r.Context().Err() }

// itemContext returns the context for the items of s, given the handler's context ctx. If ctx is s,
// it returns the underlying context, whose Err takes no lock.
func (s *request) itemContext(ctx context.Context) context.Context {
	if ctx == context.Context(s) {
		return s.r.Context()
	}
	return ctx
}

// Value implements context.Context.
func (s *requestContext) Value(key any) any {
	if key == (drainKey{}) {
		return s.n.drainCtx
	}
	return s.r.Context().Value(key)
}

// Value implements context.Context.
func (s *request) Value(key any) any {
	if key == (callKey{}) {
		return s.callOf(s.in, s.out)
	}
	return s.requestContext.Value(key)
}

// A lentField is a Source or a Sink in the input of a request.
type lentField struct {
	source *pulledSource
	sink   *pushedSink
	filled sinkFill // how far a Sink was filled; set after the handler has returned
}

// ticket returns the ticket of l, or nil if l is neither a Source nor a Sink.
func (l *lentField) ticket() *ticket {
	switch {
	case l.source != nil:
		return &l.source.ticket
	case l.sink != nil:
		return &l.sink.ticket
	}
	return nil
}

// attachLent attaches the Sources and Sinks of the input to the request. They remain usable until
// endLent is called.
func (s *request) attachLent() {
	if len(s.m.fields) == 0 {
		return
	}
	v, from := reflect.ValueOf(s.in).Elem(), s.r.Peer()
	for _, f := range s.m.fields {
		var l lentField
		switch at := v.FieldByIndex(f.path).Addr().Interface().(type) {
		case *Source:
			if at.s != nil {
				l.source = at.s.handler
				l.source.req, l.source.peer = s, from
			}
		case *Sink:
			if at.s != nil {
				l.sink = at.s.handler
				l.sink.req, l.sink.peer = s, from
			}
		}
		s.lent = append(s.lent, l)
	}
}

// takeStreams attaches the streams of the request to the Readers and Writers of the input. It fails
// if a Reader or Writer refers to a stream that does not match it.
func (s *request) takeStreams() error {
	var taken [na.MaxStreams]bool
	for i := range s.lent {
		l := &s.lent[i]
		t := l.ticket()
		if t == nil || !t.isStream() {
			continue
		}
		t.stream = s.r.Stream(t.index)
		if t.stream == nil || t.stream.Spec() != (hg.StreamSpec{Up: l.source != nil, Bulk: true}) ||
			taken[t.index] {
			return hg.Errorf(hg.ErrBadInput,
				"the input of %s refers to stream %d, which does not match the request",
				s.m.name, t.index)
		}
		taken[t.index] = true
	}
	return nil
}

// end makes the Source or Sink unusable.
func (l *lentField) end() {
	if l.source != nil {
		l.source.end()
	}
	if l.sink != nil {
		l.sink.end()
	}
}
