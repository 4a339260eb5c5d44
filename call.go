package quicksilver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An outgoing is a Call at its origin.
//
//	run ─ interceptors ─► attempt: lend ─► hg.Handle.Call ─► take back what was lent: nobody touches it any more
//	                         ▲ again, by an interceptor that calls next again
type outgoing struct {
	Call
	m      *method
	reply  any      // where the answer is decoded to
	filled *[]int64 // of the answer; nil without Sinks
}

func (o *outgoing) begin(m *method, to Peer, ctl *control) {
	o.m = m
	o.Call.Method, o.Call.Options, o.Peer, o.Attempt, o.ctl = m.name, m.o, to, 1, ctl
}

func (o *outgoing) run(ctx context.Context) error {
	if o.Peer.p == nil {
		return errNoPeer
	}
	if c, ok := ctx.Value(metaKey{}).(carried); ok {
		if c.err != nil {
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: NotRun, Err: c.err}
		}
		o.Meta = c.m
	}
	is := o.Peer.p.n.cfg.Client
	if len(is) == 0 {
		return o.attempt(ctx)
	}
	return chain(ctx, is, &o.Call, o.attempt)
}

// attempt makes the call once.
func (o *outgoing) attempt(ctx context.Context) (err error) {
	if o.Peer.p == nil {
		return errNoPeer
	}
	p := o.Peer.p
	n := p.n
	id, err := n.idOf(o.m)
	if err != nil {
		return err
	}
	to, place := p.pick()
	in := o.Call.In
	if len(o.m.fields) > 0 {
		l := &loans{n: n, hctx: n.all[p.i], m: o.m}
		defer func() { err = l.end(o, err) }()
		if in, err = l.lend(o.Call.In); err != nil {
			return &hg.Error{Op: "forward", RPC: o.m.name, Peer: to, Fate: NotRun, Err: err}
		}
		if o.ctl != nil {
			o.ctl.lend(l)
		}
	}
	h, err := n.handle(p.i, to, id)
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended { // a callback of somebody else has panicked in the wait
			_ = h.Close()
		}
	}()
	if err = h.SetMeta(o.Meta); err == nil {
		err = o.call(ctx, h, in)
	}
	if len(n.cfg.Client) > 0 {
		o.Answer = h.OutputMeta()
	}
	ended = true
	n.keep(p.i, h)
	if err != nil && suspect(err) {
		p.failed(place)
	}
	return err
}

// call makes the call with h, which others may take back meanwhile if there is a control.
func (o *outgoing) call(ctx context.Context, h *hg.Handle, in any) error {
	if o.ctl == nil {
		return h.Call(ctx, in, o.reply)
	}
	if err := o.ctl.begin(h, o); err != nil {
		return err
	}
	defer o.ctl.end()
	err := h.Call(ctx, in, o.reply)
	if !o.stalledOut() {
		return err
	}
	if e, ok := errors.AsType[*hg.Error](err); ok && ctx.Err() == nil && hg.CodeOf(err) == hg.ErrCanceled {
		late := *e
		late.Err = na.WithText(hg.ErrTimeout, fmt.Sprintf("no answer and no byte for %v", o.stall))
		return &late
	}
	return err
}

// suspect reports whether an error speaks against the address that the call went to.
func suspect(err error) bool {
	if r, ok := hg.RemoteOf(err); ok {
		return r.Refused && (r.Code == hg.ErrClosed || r.Code == NotReady || r.Code == Unavailable)
	}
	switch hg.CodeOf(err) {
	case hg.ErrPeerLost, hg.ErrUnreachable, hg.ErrTimeout:
		return true
	}
	return false
}

// idOf returns the id of a method, which is made known to the class if it is not.
func (n *Node) idOf(m *method) (hg.ID, error) {
	if id, ok := n.known.Load(m); ok {
		return id.(hg.ID), nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	id := hg.HashName(m.name)
	if _, ok := n.class.Registered(m.name); !ok {
		var err error
		if id, err = n.class.RegisterRPC(hg.RPC{Name: m.name, OneWay: m.oneWay, Codec: m.o.Codec, Shape: m.shape}); err != nil {
			return 0, fmt.Errorf("quicksilver: method %s: %w", m.name, err)
		}
	}
	n.known.Store(m, id)
	return id, nil
}

// loans is what one attempt has lent.
type loans struct {
	n       *Node
	hctx    *hg.Context
	m       *method
	handles []*bulk.Handle
	files   []*bulk.File
	rings   []*ring
	sinks   []*sink // in the order of the fields; nil for zero Sinks
}

// lend returns a pointer to a copy of the input in which Sources and Sinks can be encoded.
func (l *loans) lend(in any) (any, error) {
	own := reflect.New(reflect.TypeOf(in).Elem())
	own.Elem().Set(reflect.ValueOf(in).Elem())
	for _, f := range l.m.fields {
		switch at := own.Elem().FieldByIndex(f.path).Addr().Interface().(type) {
		case *Source:
			if at.s == nil {
				continue
			}
			wire, err := l.source(at.s)
			if err != nil {
				return nil, err
			}
			at.s = &source{wire: wire}
		case *Sink:
			l.sinks = append(l.sinks, at.s)
			if at.s == nil {
				continue
			}
			wire, err := l.sink(at.s)
			if err != nil {
				return nil, err
			}
			at.s = &sink{wire: wire}
		}
	}
	return own.Interface(), nil
}

func (l *loans) source(s *source) ([]byte, error) {
	switch {
	case s.segs != nil:
		return l.memory(bulk.ReadOnly, s.segs)
	case s.file != nil:
		m, err := bulk.MapFile(s.file, bulk.FileOptions{})
		if errors.Is(err, errors.ErrUnsupported) {
			return l.ring(&sectionReader{f: s.file}, nil)
		}
		if err != nil {
			return nil, err
		}
		return l.mapped(bulk.ReadOnly, m)
	case s.from != nil:
		return l.ring(s.from, nil)
	case s.got != nil:
		return nil, notInCall("Source")
	}
	return []byte{}, nil // Lend()
}

func (l *loans) sink(s *sink) ([]byte, error) {
	s.filled.Store(0)
	switch {
	case s.segs != nil:
		return l.memory(bulk.WriteOnly, s.segs)
	case s.file != nil:
		if info, err := s.file.Stat(); err != nil {
			return nil, err
		} else if s.size < 0 || info.Size() < s.size {
			if err := s.file.Truncate(s.size); err != nil {
				return nil, err
			}
		}
		if s.size == 0 {
			return []byte{}, nil
		}
		m, err := bulk.MapFile(s.file, bulk.FileOptions{Write: true, Length: s.size})
		if err != nil {
			return nil, err
		}
		return l.mapped(bulk.WriteOnly, m)
	case s.into != nil:
		return l.ring(nil, s)
	case s.got != nil:
		return nil, notInCall("Sink")
	}
	return []byte{}, nil // Fill()
}

// sectionReader reads a file from its beginning, whatever its offset is.
type sectionReader struct {
	f   *os.File
	off int64
}

func (r *sectionReader) Read(b []byte) (int, error) {
	n, err := r.f.ReadAt(b, r.off)
	r.off += int64(n)
	return n, err
}

func (l *loans) memory(access bulk.Access, segs [][]byte) ([]byte, error) {
	if total(segs) == 0 {
		return []byte{}, nil
	}
	h, err := bulk.Create(l.hctx, bulk.Options{Access: access}, segs...)
	if err != nil {
		return nil, err
	}
	l.handles = append(l.handles, h)
	return h.AppendBinary([]byte{ticketMemory})
}

func (l *loans) mapped(access bulk.Access, m *bulk.File) ([]byte, error) {
	l.files = append(l.files, m)
	if m.Len() == 0 {
		return []byte{}, nil
	}
	h, err := m.Create(l.hctx, bulk.Options{Access: access})
	if err != nil {
		return nil, err
	}
	l.handles = append(l.handles, h)
	return h.AppendBinary([]byte{ticketMemory})
}

func (l *loans) ring(from io.Reader, into *sink) ([]byte, error) {
	g, err := l.n.rings.open(l.hctx, from, into)
	if err != nil {
		return nil, err
	}
	l.rings = append(l.rings, g)
	l.handles = append(l.handles, g.h)
	return g.h.AppendBinary(append([]byte{ticketRing}, g.id[:]...))
}

// moved returns how many bytes of what is lent have been moved.
func (l *loans) moved() (n int64) {
	for _, h := range l.handles {
		n += h.Moved()
	}
	for _, g := range l.rings {
		k, _ := g.progress()
		n += k
	}
	return n
}

// end takes back what was lent, and says how far the Sinks were filled.
func (l *loans) end(o *outgoing, err error) error {
	if o.ctl != nil {
		o.ctl.lend(nil)
	}
	for _, g := range l.rings {
		g.close()
		if _, failed := g.progress(); failed != nil && err != nil && !errors.Is(err, failed) {
			err = fmt.Errorf("%w: %w", err, failed)
		}
	}
	o.Moved, o.streams = l.moved(), len(l.rings) > 0
	for _, h := range l.handles {
		if h.CloseWait(context.Background()) != nil {
			l.n.drained()
		}
	}
	for _, m := range l.files {
		_ = m.Close()
	}
	if err == nil && o.filled != nil {
		err = l.fill(*o.filled)
	}
	return err
}

// fill takes in what the target says of the Sinks.
func (l *loans) fill(filled []int64) error {
	if len(filled) != len(l.sinks) {
		return fmt.Errorf("quicksilver: method %s: the answer speaks of %d Sinks, there are %d: %w", l.m.name, len(filled), len(l.sinks), hg.ErrProtocol)
	}
	for i, s := range l.sinks {
		n := filled[i]
		if room := (Sink{s}).Len(); n < 0 || room >= 0 && n > room || room < 0 && n != s.filled.Load() {
			return fmt.Errorf("quicksilver: method %s: the answer says that Sink %d holds %d bytes: %w", l.m.name, i, n, hg.ErrProtocol)
		}
		if s == nil || s.into != nil {
			continue
		}
		s.filled.Store(n)
		if s.file != nil {
			if err := s.file.Truncate(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// drained waits until nothing of a node that was closed uses memory any more.
func (n *Node) drained() {
	for _, hctx := range n.all {
		_ = hctx.WaitFor(context.Background(), closeTime, never)
	}
}

// A control is how a call under way is taken back by others than its own goroutine.
type control struct {
	mu      sync.Mutex // guards the fields below
	h       *hg.Handle // of the attempt under way
	loans   *loans     // likewise
	stopped error      // no attempt is begun any more
	stalled bool       // the attempt was given up
	watch   *na.Op
	moved   int64 // at the last look
}

// begin begins an attempt with h.
func (c *control) begin(h *hg.Handle, o *outgoing) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped != nil {
		return &hg.Error{Op: "forward", RPC: o.m.name, Peer: h.Peer(), Fate: NotRun, Err: c.stopped}
	}
	c.h, c.stalled, c.moved = h, false, 0
	if o.stall > 0 {
		c.look(h, o.stall, o.withdraw)
	}
	return nil
}

// end ends it.
func (c *control) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h = nil
	if c.watch != nil {
		c.watch.Cancel()
		c.watch = nil
	}
}

func (c *control) lend(l *loans) {
	c.mu.Lock()
	c.loans = l
	c.mu.Unlock()
}

// stalledOut reports whether the last attempt was given up because nothing came.
func (o *outgoing) stalledOut() bool {
	o.ctl.mu.Lock()
	defer o.ctl.mu.Unlock()
	return o.ctl.stalled
}

// look gives the attempt up if nothing has been moved when stall has passed, and else looks again. Locked.
func (c *control) look(h *hg.Handle, stall, withdraw time.Duration) {
	nctx := h.Queue().NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.Err != nil || c.watch != op {
			return
		}
		c.watch = nil
		if c.loans != nil {
			if moved := c.loans.moved(); moved > c.moved {
				c.moved = moved
				c.look(h, stall, withdraw)
				return
			}
		}
		c.stalled = true
		if withdraw <= 0 {
			h.Abandon()
			return
		}
		_ = h.Withdraw(withdraw, func(_ *hg.Handle, r hg.WithdrawResult) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if r != hg.Withdrawn && c.h == h && c.stalled {
				h.Abandon()
			}
		})
	})
	if nctx.Timer(op, stall) == nil {
		c.watch = op
	}
}
