package quicksilver

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// serve registers a handler.
func (n *Node) serve(m *method, h hg.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rpc := hg.RPC{Name: m.name, Handler: h, OneWay: m.oneWay, Inline: m.o.Inline, Codec: m.o.Codec, Shape: m.shape}
	if was, ok := n.class.Registered(m.name); ok {
		if was.Handler != nil {
			panic(fmt.Sprintf("quicksilver: the node serves a method called %s already", m.name))
		}
		_ = n.class.Deregister(hg.HashName(m.name)) // it has been called from here
	}
	if _, err := n.class.RegisterRPC(rpc); err != nil {
		panic(fmt.Sprintf("quicksilver: method %s: %v", m.name, err))
	}
}

// A request is a Call at its target, and the context of its handler: what that costs is made when it is asked for.
type request struct {
	Call
	n    *Node
	m    *method
	r    hg.Incoming
	from peer
	lent []lentField // Sources and Sinks of the input
}

func (s *request) begin(n *Node, m *method, r hg.Incoming) {
	s.n, s.m, s.r = n, m, r
	s.Call.Method, s.Call.Options, s.Attempt = m.name, m.o, 1
	s.from.n, s.from.i = n, r.Queue().ID()
	s.from.addrs = s.from.one[:1]
	s.from.one[0] = r.Peer()
	s.Peer = Peer{&s.from}
	s.Call.Meta = r.Meta()
}

// input decodes the input into v, and makes its Sources and Sinks usable.
func (s *request) input(v any) error {
	if err := s.r.Input(v); err != nil {
		return hg.Refuse(err)
	}
	if len(s.m.fields) > 0 {
		return s.attach(v)
	}
	return nil
}

// run runs the handler within the interceptors.
func (s *request) run(handler func(context.Context) error) error {
	return chain(s, s.n.cfg.Server, &s.Call, handler)
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
	for range s.Answer.All() {
		return s.r.SetOutputMeta(s.Answer)
	}
	return nil
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
		return &s.Call
	}
	return s.r.Context().Value(key)
}

// A lentField is a Source or a Sink of a request.
type lentField struct {
	source *pulled
	sink   *pushed
}

// attach makes the Sources and Sinks in the input usable, until end.
func (s *request) attach(in any) error {
	v := reflect.ValueOf(in).Elem()
	for _, f := range s.m.fields {
		var l lentField
		switch at := v.FieldByIndex(f.path).Addr().Interface().(type) {
		case *Source:
			if at.s != nil {
				l.source = at.s.got
				l.source.req, l.source.peer = s, s.from.one[0]
			}
		case *Sink:
			if at.s == nil {
				at.s = &sink{got: &pushed{ticket: ticket{handle: &bulk.Handle{}}}} // counted in the answer
			}
			l.sink = at.s.got
			l.sink.req, l.sink.peer = s, s.from.one[0]
		}
		s.lent = append(s.lent, l)
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
