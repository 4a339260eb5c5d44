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

// registerHandler registers a handler.
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
	rpc := hg.RPC{Name: m.name, Handler: n.clients.limitHandler(h), OneWay: m.oneWay, Inline: m.o.inline, MaxActive: m.o.maxConcurrent, Queue: m.o.maxQueue, Timeout: m.o.timeout, Codec: c, Shape: m.shape}
	if was, ok := n.class.Registered(m.name); ok && was.Handler != nil { // one without was called from here
		panic(fmt.Sprintf("qs: the node serves a method called %s already; Handle is called once for each name", m.name))
	}
	if err := hghook.RegisterRPC(n.class, rpc, hghook.RPCOptions{CountAsCall: m.streams == nil}); err != nil {
		panic(fmt.Sprintf("qs: method %s: %v", m.name, err))
	}
}

// authorize is hg.Config.Authorize.
func (n *Node) authorize(ctx context.Context, from Caller, rpc *hg.RPC) error {
	r, ok := ctx.Value(hghook.RequestKey{}).(hg.Request)
	if !ok {
		return Errorf(ErrPermission, "the request has ended")
	}
	p := &peer{n: n, i: r.HG().ID(), single: &backend{addr: from.Addr}}
	return n.cfg.Authorize(ctx, &Call{Method: rpc.Name, Peer: Peer{p}, Metadata: r.Meta().WithoutOwn(), Attempt: 1, in: r})
}

// A request is a Call at its target, and the context of its handler: what that costs is made when it is asked for.
type request struct {
	n       *Node
	m       *method
	r       hg.Request
	in, out any             // pointers
	lent    []lentField     // Sources and Sinks of the input
	ctx     context.Context // of the handler: what the last interceptor gave to next; nil until it begins, or for the request itself

	flushed  bool // the Sinks, with this error
	flushErr error

	mu          sync.Mutex               // guards the fields below, and is held where asked is set
	lazyCall    atomic.Pointer[lazyCall] // nil until somebody has asked
	begun       bool                     // the handler has been called,
	handlerDone chan struct{}            // and is running; closed when it has returned
	returned    bool                     // the interceptors have returned
}

// An lazyCall is what an interceptor, or a handler by CallFrom, has asked for.
type lazyCall struct {
	Call
	from   peer
	origin backend
}

// isPlain reports whether nothing comes between the input, the handler and the answer: no interceptor, no Sources or Sinks, and no limit of
// the client. The request may still be one of a caller that defines the method otherwise.
func (s *request) isPlain() bool {
	return len(s.m.fields) == 0 && len(s.n.cfg.ServerInterceptors) == 0 && len(s.n.clients.limits) == 0
}

// callOf returns the Call of s.
func (s *request) callOf() *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.lazyCall.Load()
	if a == nil {
		a = &lazyCall{from: peer{n: s.n, i: s.r.HG().ID()}, origin: backend{addr: s.r.Peer()}}
		a.from.single = &a.origin
		a.Call = Call{Method: s.m.name, Idempotent: s.m.o.idempotent, Peer: Peer{&a.from}, Metadata: s.r.Meta().WithoutOwn(), In: s.in, Out: s.out, Attempt: 1, in: s.r, lends: len(s.m.fields) > 0 || s.m.streams != nil}
		s.lazyCall.Store(a)
	}
	return &a.Call
}

// decodeInput decodes the input, and makes its Sources and Sinks usable. An error is one of a request that has not run.
func (s *request) decodeInput() (err error) {
	meta := s.r.Meta()
	if err = s.m.checkAgreement(s.r); err == nil {
		err = addFieldName(meta, s.r.Input((*decodedInput)(s)))
	}
	if err == nil || errors.Is(err, codec.ErrUnknownField) { // which may be what is lent
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
		known = known && !t.isStream() && s.lent[i].sink == nil // the handler may fill as little of that as it likes
	}
	if !known {
		c.Size = 0
	}
}

// A typedHandler is a handler with its input.
type typedHandler interface {
	handle(ctx context.Context) error
}

type handlingFunc func(ctx context.Context) error

func (f handlingFunc) handle(ctx context.Context) error { return f(ctx) }

// runHandler runs the handler within the interceptors.
func (s *request) runHandler(h typedHandler) error {
	is := s.n.cfg.ServerInterceptors
	if len(is) == 0 {
		return h.handle(s)
	}
	return s.runWithin(is, h)
}

// runWithin runs the handler within interceptors.
func (s *request) runWithin(is []Interceptor, h typedHandler) error {
	ctx, leave := context.WithCancel(s)
	defer leave()
	returned := false
	defer func() { // before the panic, or the end of the goroutine, is answered as that of a handler
		if !returned && !s.closeHandler(leave) && !s.m.oneWay {
			_ = s.r.RespondError(hg.Refuse(hg.Errorf(hg.ErrPanic,
				"an interceptor of %s panicked, or ended its goroutine, before the handler began; the target's log has it", s.m.name)), nil)
		}
	}()
	err := chainAround(ctx, is, s.callOf(), func(ctx context.Context) error {
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

var errNextTwice = na.WithText(ErrInvalid, "a server's interceptor calls next once: the handler has begun")

// checkBegin reports why the handler does not begin.
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

// onReturn is the end of the handler.
func (s *request) onReturn() {
	s.mu.Lock()
	late := s.returned
	close(s.handlerDone)
	s.mu.Unlock()
	if late {
		s.r.HG().Wake()
	}
}

// closeHandler has no handler begin any more, and reports whether one has. If it is running, on a goroutine of an interceptor, its
// context ends, and it is waited for.
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

// handlerContext returns what ends operations of the handler that are given no context.
func (s *request) handlerContext() context.Context {
	if s.ctx == nil {
		return s
	}
	return s.ctx
}

// flushSinks ends the use of Sinks, until ctx ends. It is done once, within the interceptors: they get its error.
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

// answerMeta returns the metadata that the handler and the interceptors have set.
func (s *request) answerMeta() (m hg.Metadata) {
	if a := s.lazyCall.Load(); a != nil {
		m = a.ResponseMetadata.WithoutOwn()
	}
	return m
}

// setAnswerMeta sets the metadata of the answer, with a value under a name of this package's, unless that is empty.
func (s *request) setAnswerMeta(name, value string) (err error) {
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

// onFailure is the end of a handler with an error.
func (s *request) onFailure(err error) error {
	_ = s.r.SetOutputMeta(s.answerMeta()) // the answer matters more
	return err
}

// endLent ends the use of the Sources and Sinks, and returns the share of the client: the handler has returned, or panics.
func (s *request) endLent() {
	for i := range s.lent {
		s.lent[i].end()
	}
	if len(s.n.clients.limits) > 0 {
		s.n.clients.returnShare(s.r)
	}
}

// Deadline implements context.Context.
func (s *request) Deadline() (time.Time, bool) {
	if _, ok := s.r.TimeLeft(); !ok {
		return time.Time{}, false
	}
	return s.r.Context().Deadline()
}

// Done implements context.Context.
func (s *request) Done() <-chan struct{} { return s.r.Context().Done() }

// Err implements context.Context.
func (s *request) Err() error { return s.r.Context().Err() }

// Value implements context.Context.
func (s *request) Value(key any) any {
	switch key {
	case callKey{}:
		return s.callOf()
	case drainKey{}:
		return s.n.drainCtx
	}
	return s.r.Context().Value(key)
}

// A lentField is a Source or a Sink of a request.
type lentField struct {
	source *pulledSource
	sink   *pushedSink
	filled sinkFill // of a Sink, when the handler has ended
}

// ticket returns that of l; nil if there is none.
func (l *lentField) ticket() *ticket {
	switch {
	case l.source != nil:
		return &l.source.ticket
	case l.sink != nil:
		return &l.sink.ticket
	}
	return nil
}

// attachLent makes the Sources and Sinks in the input usable, until end.
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

// takeStreams gives the Readers and Writers among the input their streams.
func (s *request) takeStreams() error {
	var taken [na.MaxStreams]bool
	for i := range s.lent {
		l := &s.lent[i]
		t := l.ticket()
		if t == nil || !t.isStream() {
			continue
		}
		t.stream = s.r.Stream(t.index)
		if t.stream == nil || t.stream.Spec() != (hg.StreamSpec{Up: l.source != nil, Bulk: true}) || taken[t.index] {
			return hg.Errorf(hg.ErrBadInput, "the input of %s has a ticket of stream %d of the request, which is not for it", s.m.name, t.index)
		}
		taken[t.index] = true
	}
	return nil
}

func (l *lentField) end() {
	if l.source != nil {
		l.source.end()
	}
	if l.sink != nil {
		l.sink.end()
	}
}
