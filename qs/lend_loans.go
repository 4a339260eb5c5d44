package qs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// loanSet is what one attempt has lent.
type loanSet struct {
	n       *Node
	hctx    *hg.Context
	m       *method
	handles []*bulk.Handle
	files   []*bulk.File
	pumps   []*pump
	tickets []*lentTicket // by their numbers
	filled  []sinkFill    // bytes in each Sink with a ticket, without gaps, from its beginning: what the answer says
	sinks   []lentSink    // in the order of the fields, without zero Sinks
	streams *callStreams  // of items; else nil
}

// A lentSink is a Sink of an attempt.
type lentSink struct {
	*sinkState
	hasTicket bool // it has a ticket: the answer says how far it was filled
}

// lendInput returns a pointer to a copy of the input in which Sources and Sinks can be encoded.
func (l *loanSet) lendInput(in any) (any, error) {
	own := reflect.New(reflect.TypeOf(in).Elem())
	own.Elem().Set(reflect.ValueOf(in).Elem())
	for _, f := range l.m.fields {
		switch at := own.Elem().FieldByIndex(f.path).Addr().Interface().(type) {
		case *Source:
			if at.s == nil {
				continue
			}
			wire, err := l.lendSource(at.s)
			if err != nil {
				return nil, err
			}
			at.s = nil
			if t := l.newTicket(f, wire); t != nil {
				at.s = &sourceState{lent: t}
			}
		case *Sink:
			if at.s == nil {
				continue
			}
			if at.s.into == nil && !at.s.used.CompareAndSwap(false, true) { // a Writer is taken by its pump
				return nil, errInUse
			}
			l.sinks = append(l.sinks, lentSink{sinkState: at.s})
			wire, err := l.lendSink(at.s)
			if err != nil {
				return nil, err
			}
			at.s = nil
			if t := l.newTicket(f, wire); t != nil {
				l.sinks[len(l.sinks)-1].hasTicket = true
				at.s = &sinkState{lent: t}
			}
		}
	}
	if len(l.m.fields) == 0 {
		return own.Interface(), nil
	}
	return &lentInput{own.Interface(), l}, nil
}

// newTicket numbers what travels in the place of a field; nil for nothing.
func (l *loanSet) newTicket(f field, wire []byte) *lentTicket {
	if len(wire) == 0 {
		return nil
	}
	if f.sink {
		wire[0] |= ticketSink
	}
	wire[1] = byte(len(l.tickets))
	t := &lentTicket{wire: wire, field: f.name}
	l.tickets = append(l.tickets, t)
	return t
}

func (l *loanSet) lendSource(s *sourceState) ([]byte, error) {
	switch {
	case s.segs != nil:
		return l.lendMemory(bulk.ReadOnly, s.segs)
	case s.file != nil:
		if isUnsized(s.file) {
			return l.lendStream(&sectionReader{f: s.file}, nil, new(streamUse))
		}
		m, err := mapFile(s.file, bulk.FileOptions{})
		if errors.Is(err, errors.ErrUnsupported) {
			return l.lendStream(&sectionReader{f: s.file}, nil, new(streamUse))
		}
		if err != nil {
			return nil, err
		}
		return l.lendMapped(bulk.ReadOnly, m)
	case s.from != nil:
		return l.lendStream(s.from, nil, &s.used)
	case s.handler != nil:
		return nil, errNotInCall("Source")
	}
	return nil, errNilSource
}

func (l *loanSet) lendSink(s *sinkState) ([]byte, error) {
	if s.into == nil {
		s.filled.Store(0)
	}
	switch {
	case s.segs != nil:
		return l.lendMemory(bulk.WriteOnly, s.segs)
	case s.file != nil:
		if s.size < 0 {
			return nil, fmt.Errorf("qs: FileBuffer: a size of %d, want 0 or more: %w", s.size, hg.ErrInvalid)
		}
		if info, err := s.file.Stat(); err != nil {
			return nil, err
		} else if info.Size() < s.size {
			if err := s.file.Truncate(s.size); err != nil {
				return nil, fmt.Errorf("qs: FileBuffer: the file cannot grow to %d bytes: %w", s.size, err)
			}
		}
		if s.size == 0 {
			return []byte{}, nil
		}
		m, err := mapFile(s.file, bulk.FileOptions{Write: true, Length: s.size})
		if errors.Is(err, errors.ErrUnsupported) {
			through := &sinkState{into: &limitedFileWriter{f: s.file, limit: s.size}, fileSink: s}
			l.sinks[len(l.sinks)-1].sinkState = through
			return l.lendStream(nil, through, &through.used)
		}
		if err != nil {
			return nil, err
		}
		return l.lendMapped(bulk.WriteOnly, m)
	case s.into != nil:
		return l.lendStream(nil, s, &s.used)
	case s.handler != nil:
		return nil, errNotInCall("Sink")
	}
	return nil, errNilSink
}

var (
	errNilSource = fmt.Errorf("qs: File or Reader got nil: %w", hg.ErrInvalid)
	errNilSink   = fmt.Errorf("qs: FileBuffer or Writer got nil: %w", hg.ErrInvalid)
)

// A limitedFileWriter writes a file from its beginning, up to a size.
type limitedFileWriter struct {
	f          *os.File
	off, limit int64
}

func (w *limitedFileWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > w.limit-w.off {
		return 0, hg.Errorf(hg.ErrOverflow, "there is room for %d bytes in the file; FileBuffer takes a larger size", w.limit)
	}
	n, err := w.f.WriteAt(b, w.off)
	w.off += int64(n)
	return n, err
}

func (l *loanSet) lendMemory(access bulk.Access, segs [][]byte) ([]byte, error) {
	if totalLen(segs) == 0 {
		return []byte{}, nil
	}
	h, err := bulk.Create(l.hctx, bulk.Options{Access: access}, segs...)
	if err != nil {
		return nil, err
	}
	l.handles = append(l.handles, h)
	return h.AppendBinary([]byte{ticketMemory, 0})
}

func (l *loanSet) lendMapped(access bulk.Access, m *bulk.File) ([]byte, error) {
	l.files = append(l.files, m)
	if m.Len() == 0 {
		return []byte{}, nil
	}
	h, err := m.Create(l.hctx, bulk.Options{Access: access})
	if err != nil {
		return nil, err
	}
	l.handles = append(l.handles, h)
	return h.AppendBinary([]byte{ticketMemory, 0})
}

// lendStream lends a reader or a writer, by a stream of the call.
func (l *loanSet) lendStream(from io.Reader, into *sinkState, used *streamUse) ([]byte, error) {
	index := len(l.m.streams) + len(l.pumps)
	if index == na.MaxStreams {
		return nil, hg.Errorf(ErrInvalid, "the input has more than %d Readers and Writers, each of which is a stream of the call: lend memory or files, or make several calls", na.MaxStreams-len(l.m.streams))
	}
	g, err := l.n.newPump(l.hctx, from, into, used)
	if err != nil {
		return nil, err
	}
	l.pumps = append(l.pumps, g)
	length := int64(-1)
	if from != nil {
		length = expectedOf(from)
	}
	return appendStreamTicket(nil, index, length), nil
}

// streamSpecs returns what the streams of the call are: those of items, and behind them those of pumps.
func (l *loanSet) streamSpecs() []hg.StreamSpec {
	if len(l.pumps) == 0 {
		return l.m.streams
	}
	specs := slices.Clone(l.m.streams)
	for _, g := range l.pumps {
		specs = append(specs, hg.StreamSpec{Up: g.from != nil, Bulk: true})
	}
	return specs
}

// bindStreams has the streams of a call that has begun be used.
func (l *loanSet) bindStreams(h *hg.Handle) {
	var items []*hg.Stream
	for i := range l.m.streams {
		items = append(items, h.Stream(i))
	}
	for i, g := range l.pumps {
		g.start(h.Stream(len(items) + i))
	}
	if l.streams != nil {
		l.streams.bindAttempt(items)
	}
}

// takeStreams takes the streams of a call that has ended with err; pumps have theirs.
func (l *loanSet) takeStreams(h *hg.Handle, err error) {
	all, _ := hghook.TakeStreams(h).([]*hg.Stream)
	if l.streams != nil {
		l.streams.endAttempt(all[:min(len(all), len(l.m.streams))], err)
	}
}

// finishPumps waits, after a call that has succeeded, until the program's writers have got all bytes.
func (l *loanSet) finishPumps(ctx context.Context, i int, to hg.Addr) error {
	for _, g := range l.pumps {
		if err := g.finish(ctx, l.n, i); err != nil {
			return hghook.EndedBy(ctx, brokenStream(l.m, to, err))
		}
	}
	return nil
}

// lentBytes returns how many bytes are lent; of a stream nobody knows.
func (l *loanSet) lentBytes() (n int64) {
	for _, h := range l.handles {
		n += h.Len()
	}
	return n
}

// movedBytes returns how many bytes of what is lent have been moved.
func (l *loanSet) movedBytes() (n int64) {
	for _, h := range l.handles {
		n += h.Moved()
	}
	for _, g := range l.pumps {
		n += g.passedBytes()
	}
	if l.streams != nil {
		n += l.streams.movedBytes()
	}
	return n
}

// Report implements hghook.Reporter.
func (l *loanSet) Report(c *inspect.Call) {
	c.Moved = l.movedBytes()
	if len(l.pumps) == 0 && len(l.sinks) == 0 { // else nobody knows
		c.Size = l.lentBytes()
	}
	if l.streams != nil {
		c.Moved, c.Size, c.Flow = 0, 0, l.streams.flow()
	}
}

// spentBytes returns how many bytes of readers, writers and items have moved, which no other attempt could move again.
func (l *loanSet) spentBytes() (n int64) {
	for _, g := range l.pumps {
		k, _ := g.pumpedBytes()
		n += k
	}
	if l.streams != nil {
		n += l.streams.movedBytes()
	}
	return n
}

// progress grows with each byte that moves, also one that waits to leave.
func (l *loanSet) progress() (n int64) {
	for _, h := range l.handles {
		n += h.Moved()
	}
	for _, g := range l.pumps {
		n += g.progress()
	}
	if l.streams != nil {
		n += l.streams.progress()
	}
	return n
}

// revokeHandle ends the use of h by peers.
func (l *loanSet) revokeHandle(h *bulk.Handle) {
	if h.CloseWait(context.Background()) != nil {
		l.n.waitDrained()
	}
}

// failedBy returns err, of a call, that matches also what its reader or writer has failed with, and reads so unless the target has said it.
func failedBy(err, failed error) error {
	if r, ok := hg.RemoteOf(err); ok && strings.Contains(r.Text, failed.Error()) {
		return repeatedCause{err, failed}
	}
	return fmt.Errorf("%w: %w", err, failed)
}

// A repeatedCause is an error whose text has that of its cause.
type repeatedCause struct {
	error
	cause error
}

func (e repeatedCause) Unwrap() []error { return []error{e.error, e.cause} }

// fillSinks takes in what the target says of the Sinks.
func (l *loanSet) fillSinks() error {
	filled := l.filled
	for _, lent := range l.sinks {
		s, n := lent.sinkState, sinkFill{}
		if lent.hasTicket {
			if len(filled) == 0 {
				return fmt.Errorf("qs: method %s: the answer says of %d Sinks how far they were filled, there are more: %w", l.m.name, len(l.filled), na.ErrProtocol)
			}
			n, filled = filled[0], filled[1:]
			if room := (Sink{s}).Len(); n.prefix < 0 || n.end < n.prefix || room >= 0 && n.end > room || room < 0 && n.prefix != s.filled.Load() {
				return fmt.Errorf("qs: method %s: the answer says that a Sink holds %d bytes and ends at %d, which cannot be: %w",
					l.m.name, n.prefix, n.end, na.ErrProtocol)
			}
		}
		if s.into != nil && s.fileSink == nil {
			continue
		}
		if s.fileSink != nil {
			s = s.fileSink
		}
		s.filled.Store(n.prefix)
		if s.file != nil {
			if err := s.file.Truncate(n.end); err != nil {
				return err
			}
		}
	}
	if len(filled) > 0 {
		return fmt.Errorf("qs: method %s: the answer says of %d Sinks how far they were filled, there are fewer: %w", l.m.name, len(l.filled), na.ErrProtocol)
	}
	return nil
}
