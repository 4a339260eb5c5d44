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
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// registerHandler registers h as the handler of m. It panics if h is nil, or the node serves a
// method of this name.
func (n *Node) registerHandler(m *method, h hg.Handler, isNil bool) {
	if isNil {
		panic(fmt.Sprintf("qs: method %s: the handler is nil", m.name))
	}
	is, c := n.describeDefinition(m), n.codecOf(m)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.useDefinitionLocked(m.name, is); err != nil {
		panic(fmt.Sprintf("qs: method %s: %v", m.name, err))
	}
	rpc := hg.RPC{Name: m.name, Handler: n.clients.limitHandler(h), OneWay: m.oneWay, Inline: m.o.inline,
		MaxActive: m.o.maxConcurrent, Queue: m.o.maxQueue, Timeout: m.o.timeout, Codec: c, Shape: m.shape}
	// Without a handler: idOf registered it for a call.
	if was, ok := n.class.Registered(m.name); ok && was.Handler != nil {
		panic(fmt.Sprintf("qs: method %s already has a handler",
			m.name))
	}
	if err := hghook.RegisterRPC(n.class, rpc,
		hghook.RPCOptions{CountAsCall: m.streams == nil}); err != nil {
		panic(fmt.Sprintf("qs: method %s: %v", m.name, err))
	}
}

// authorize implements hg.Config.Authorize by Config.Authorize.
func (n *Node) authorize(ctx context.Context, from Caller, rpc *hg.RPC) error {
	r, ok := ctx.Value(hghook.RequestKey{}).(hg.Request)
	if !ok {
		return Errorf(ErrPermission, "the request has ended")
	}
	p := &peer{n: n, i: r.HG().ID(), single: &backend{addr: from.Addr}}
	return n.cfg.Authorize(ctx, &Call{Method: rpc.Name, Peer: Peer{p}, Metadata: r.Meta().WithoutOwn(),
		Attempt: 1, in: r})
}

// A requestContext is the context of a handler. Its Call is made only when an interceptor or
// CallFrom asks for it, which most handlers never do.
type requestContext struct {
	n        *Node
	m        *method
	r        hg.Request
	lazyCall atomic.Pointer[lazyCall] // nil until it is asked for
}

// A plainRequest is one call at its server of which only the handler knows: with no interceptor, no
// Sources or Sinks, and no limit of the client. It is the context of the handler, too.
type plainRequest[In, Out any] struct {
	requestContext
	in  In
	out Out
}

// plainHandler returns the handler of a method whose requests are plain but for those with metadata:
// their caller may define the method otherwise, and they are for the handler other. The answer leaves
// when the handler has returned.
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

// A request is one call at its server, with all that may come between its input, the handler and the
// answer. It is the context of the handler, too.
type request struct {
	requestContext
	in, out any         // pointers to input and output; out is nil if there is none
	lent    []lentField // Sources and Sinks of the input
	// ctx is the context that the last interceptor gave to next; nil until the handler begins, or
	// if it is the request itself.
	ctx context.Context

	flushed  bool  // flushSinks was called
	flushErr error // error of flushSinks

	mu          sync.Mutex    // guards the fields below
	begun       bool          // the handler was called
	handlerDone chan struct{} // closed when the handler has returned; nil until it begins
	returned    bool          // the interceptors have returned
}

// A lazyCall is the Call of a request, with the Peer that it refers to.
type lazyCall struct {
	Call
	from   peer
	origin backend
}

// servesPlain reports whether the requests of m at n are plainRequests.
func (n *Node) servesPlain(m *method) bool {
	return len(m.fields) == 0 && len(n.cfg.ServerInterceptors) == 0 && len(n.clients.limits) == 0
}

// callOf returns the Call of the request, with the pointers to its input and output, and makes it
// the first time.
func (s *requestContext) callOf(in, out any) *Call {
	if a := s.lazyCall.Load(); a != nil {
		return &a.Call
	}
	a := &lazyCall{from: peer{n: s.n, i: s.r.HG().ID()}, origin: backend{addr: s.r.Peer()}}
	a.from.single = &a.origin
	a.Call = Call{Method: s.m.name, Idempotent: s.m.o.idempotent, Peer: Peer{&a.from},
		Metadata: s.r.Meta().WithoutOwn(), In: in, Out: out, Attempt: 1, in: s.r,
		lends: len(s.m.fields) > 0 || s.m.streams != nil}
	if !s.lazyCall.CompareAndSwap(nil, a) { // another goroutine has made it meanwhile
		a = s.lazyCall.Load()
	}
	return &a.Call
}

// decodeInput decodes the input and prepares its Sources and Sinks. Its errors refuse the request
// (NotRun).
func (s *request) decodeInput() (err error) {
	meta := s.r.Meta()
	if err = s.m.checkAgreement(s.r); err == nil {
		err = addFieldName(meta, s.r.Input((*decodedInput)(s)))
	}
	// The unknown field may be a Source or a Sink: checkTickets names it.
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

// runHandler runs h inside the interceptors of the server.
func (s *request) runHandler(h typedHandler) error {
	is := s.n.cfg.ServerInterceptors
	if len(is) == 0 {
		return h.handle(s)
	}
	return s.runWithin(is, h)
}

// runWithin runs h inside the interceptors is.
func (s *request) runWithin(is []Interceptor, h typedHandler) error {
	ctx, leave := context.WithCancel(s)
	defer leave()
	returned := false
	// If an interceptor panics or ends its goroutine before the handler began, the request is
	// refused, before package hg answers the panic as one of a handler that ran.
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

// checkBegin marks the handler as begun, or returns why it must not begin.
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

// onReturn marks the handler as returned, and wakes closeHandler.
func (s *request) onReturn() {
	s.mu.Lock()
	late := s.returned
	close(s.handlerDone)
	s.mu.Unlock()
	if late {
		s.r.HG().Wake()
	}
}

// closeHandler lets no handler begin any more, and reports whether one has begun. If the handler
// still runs, on a goroutine that an interceptor started, leave cancels its context, and
// closeHandler waits for it.
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

// handlerContext returns the context for operations of the handler that take none, such as ReadAt.
func (s *request) handlerContext() context.Context {
	if s.ctx == nil {
		return s
	}
	return s.ctx
}

// flushSinks flushes the Sinks and ends their use. It waits until ctx is done. It works once,
// inside the interceptors, so that they get its error.
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

// answerMeta returns the metadata that the handler and the interceptors have set for the answer.
func (s *requestContext) answerMeta() (m hg.Metadata) {
	if a := s.lazyCall.Load(); a != nil {
		m = a.ResponseMetadata.WithoutOwn()
	}
	return m
}

// setAnswerMeta sets the metadata of the answer. A non-empty value is added under a name of this
// package.
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

// onFailure sets the metadata of the answer to a handler that returned err, and returns err.
func (s *requestContext) onFailure(err error) error {
	_ = s.r.SetOutputMeta(s.answerMeta()) // an error here must not replace err
	return err
}

// endLent ends the use of the Sources and Sinks, and returns the client's share. The handler has
// returned or panicked.
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

// itemContext returns ctx, the context of the handler, for the items of s: if it is s, then the
// context behind it, whose Err takes no lock.
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

// A lentField is a Source or a Sink of a request.
type lentField struct {
	source *pulledSource
	sink   *pushedSink
	filled sinkFill // how far a Sink was filled; set when the handler has ended
}

// ticket returns the ticket of l, or nil.
func (l *lentField) ticket() *ticket {
	switch {
	case l.source != nil:
		return &l.source.ticket
	case l.sink != nil:
		return &l.sink.ticket
	}
	return nil
}

// attachLent attaches the Sources and Sinks of the input to the request. They are usable until
// endLent.
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

// takeStreams attaches the streams of the request to the Readers and Writers of the input.
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

// end ends the use of l.
func (l *lentField) end() {
	if l.source != nil {
		l.source.end()
	}
	if l.sink != nil {
		l.sink.end()
	}
}
