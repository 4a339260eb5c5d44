package quicksilver

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// serve registers a handler.
func (n *Node) serve(m *method, h hg.Handler, isNil bool) {
	if isNil {
		panic(fmt.Sprintf("quicksilver: method %s: the handler is nil", m.name))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	rpc := hg.RPC{Name: m.name, Handler: h, OneWay: m.oneWay, Inline: m.o.Inline, Codec: m.o.Codec, Shape: m.shape}
	if was, ok := n.class.Registered(m.name); ok {
		if was.Handler != nil {
			panic(fmt.Sprintf("quicksilver: the node serves a method called %s already; Handle is called once for each name", m.name))
		}
		_ = n.class.Deregister(hg.HashName(m.name)) // it has been called from here
	}
	if _, err := n.class.RegisterRPC(rpc); err != nil {
		panic(fmt.Sprintf("quicksilver: method %s: %v", m.name, err))
	}
}

// A request is a Call at its target, and the context of its handler: what that costs is made when it is asked for.
type request struct {
	n       *Node
	m       *method
	r       hg.Incoming
	in, out any         // pointers
	lent    []lentField // Sources and Sinks of the input

	mu    sync.Mutex // guards asked
	asked *asked
}

// An asked is what an interceptor, or a handler by CallOf, has asked for.
type asked struct {
	Call
	from peer
}

// call returns the Call of s.
func (s *request) call() *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		a := &asked{from: peer{n: s.n, i: s.r.Queue().ID(), one: [1]hg.Addr{s.r.Peer()}}}
		a.from.addrs = a.from.one[:]
		a.Call = Call{Method: s.m.name, Options: s.m.o, Peer: Peer{&a.from}, Meta: s.r.Meta(), In: s.in, Out: s.out, Attempt: 1}
		s.asked = a
	}
	return &s.asked.Call
}

// input decodes the input, and makes its Sources and Sinks usable.
func (s *request) input() error {
	if err := s.r.Input(s.in); err != nil {
		return hg.Refuse(err)
	}
	if len(s.m.fields) > 0 {
		s.attach()
	}
	return nil
}

// run runs the handler within the interceptors.
func (s *request) run(handler func(context.Context) error) error {
	is := s.n.cfg.Server
	if len(is) == 0 {
		return handler(s)
	}
	return chain(s, is, s.call(), handler)
}

// answered ends the use of Sources and Sinks, whose lengths go into filled, and sets the metadata of the answer.
func (s *request) answered(filled *[]int64) (err error) {
	for i := range s.lent {
		if f := &s.lent[i]; f.sink != nil {
			if ferr := f.sink.flush(); ferr != nil && err == nil {
				err = ferr
			}
			*filled = append(*filled, f.sink.prefix())
		}
	}
	if err != nil {
		return err
	}
	return s.say()
}

// say sets the metadata of the answer.
func (s *request) say() error {
	s.mu.Lock()
	a := s.asked
	s.mu.Unlock()
	if a == nil || a.Answer.IsZero() {
		return nil
	}
	return s.r.SetOutputMeta(a.Answer)
}

// failed is the end of a handler with an error.
func (s *request) failed(err error) error {
	_ = s.say() // the answer matters more
	return err
}

// end ends the use of the Sources and Sinks: the handler has returned, or panics.
func (s *request) end() {
	for i := range s.lent {
		s.lent[i].end()
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
	if key == (callKey{}) {
		return s.call()
	}
	return s.r.Context().Value(key)
}

// A lentField is a Source or a Sink of a request.
type lentField struct {
	source *pulled
	sink   *pushed
}

// attach makes the Sources and Sinks in the input usable, until end.
func (s *request) attach() {
	v, from := reflect.ValueOf(s.in).Elem(), s.r.Peer()
	for _, f := range s.m.fields {
		var l lentField
		switch at := v.FieldByIndex(f.path).Addr().Interface().(type) {
		case *Source:
			if at.s != nil {
				l.source = at.s.got
				l.source.req, l.source.peer = s, from
			}
		case *Sink:
			if at.s == nil {
				at.s = &sink{got: &pushed{ticket: ticket{handle: &bulk.Handle{}}}} // counted in the answer
			}
			l.sink = at.s.got
			l.sink.req, l.sink.peer = s, from
		}
		s.lent = append(s.lent, l)
	}
}

func (l *lentField) end() {
	if l.source != nil {
		l.source.end()
	}
	if l.sink != nil {
		l.sink.end()
	}
}
