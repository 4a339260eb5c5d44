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

// A loanSet holds the Sources and Sinks that one attempt of a call lends to the peer.
type loanSet struct {
	n       *Node
	hctx    *hg.Context
	m       *method
	handles []*bulk.Handle
	files   []*bulk.File
	pumps   []*pump
	tickets []*lentTicket // the tickets of the input, indexed by number
	// filled holds the lengths of the Sinks that have tickets, in the order of the tickets, as
	// reported by the response.
	filled  []sinkFill
	sinks   []lentSink   // the input's Sinks in field order, excluding zero Sinks
	streams *callStreams // item streams; nil for a plain method
}

// A lentSink is a Sink lent for an attempt.
type lentSink struct {
	*sinkState
	hasTicket bool // the Sink has a ticket, so the response reports how many bytes were written
}

// lendInput registers the Sources and Sinks of in for access by the peer. It returns a pointer to a
// copy of in whose Sources and Sinks encode as tickets.
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
			if at.s.into == nil && !at.s.used.CompareAndSwap(false, true) { // newPump does this for a Writer
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

// newTicket returns a ticket for field f, or nil if wire is empty. wire is the encoded ticket, in
// which newTicket stores the ticket's number.
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

// lendSource registers the Source s and returns its encoded ticket, which is empty if s has no
// bytes.
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

// lendSink registers the Sink s and returns its encoded ticket, which is empty if the size of s is
// 0.
func (l *loanSet) lendSink(s *sinkState) ([]byte, error) {
	if s.into == nil {
		s.filled.Store(0)
	}
	switch {
	case s.segs != nil:
		return l.lendMemory(bulk.WriteOnly, s.segs)
	case s.file != nil:
		if s.size < 0 {
			return nil, fmt.Errorf("qs: FileBuffer: negative size %d: %w", s.size,
				hg.ErrInvalid)
		}
		if info, err := s.file.Stat(); err != nil {
			return nil, err
		} else if info.Size() < s.size {
			if err := s.file.Truncate(s.size); err != nil {
				return nil, fmt.Errorf("qs: FileBuffer: cannot grow the file to %d bytes: %w", s.size,
					err)
			}
		}
		if s.size == 0 {
			return []byte{}, nil
		}
		m, err := mapFile(s.file, bulk.FileOptions{Write: true, Length: s.size})
		if errors.Is(err, errors.ErrUnsupported) {
			asWriter := &sinkState{into: &limitedFileWriter{f: s.file, limit: s.size}, fileSink: s}
			l.sinks[len(l.sinks)-1].sinkState = asWriter
			return l.lendStream(nil, asWriter, &asWriter.used)
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
	errNilSource = fmt.Errorf("qs: File or Reader called with nil: %w", hg.ErrInvalid)
	errNilSink   = fmt.Errorf("qs: FileBuffer or Writer called with nil: %w", hg.ErrInvalid)
)

// A limitedFileWriter writes to a file, starting at its beginning. A Write that would exceed limit
// bytes fails.
type limitedFileWriter struct {
	f          *os.File
	off, limit int64
}

// Write implements io.Writer.
func (w *limitedFileWriter) Write(b []byte) (int, error) {
	if int64(len(b)) > w.limit-w.off {
		return 0, hg.Errorf(hg.ErrOverflow,
			"write exceeds the FileBuffer's size of %d bytes", w.limit)
	}
	n, err := w.f.WriteAt(b, w.off)
	w.off += int64(n)
	return n, err
}

// lendMemory registers segs and returns the encoded ticket, which is empty if there are no bytes.
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

// lendMapped registers the mapped file m and returns the encoded ticket, which is empty if the file
// is empty.
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

// lendStream creates a pump between a reader or writer and a new stream of the call. It returns the
// stream's encoded ticket.
func (l *loanSet) lendStream(from io.Reader, into *sinkState, used *streamUse) ([]byte, error) {
	index := len(l.m.streams) + len(l.pumps)
	if index == na.MaxStreams {
		return nil, hg.Errorf(ErrInvalid,
			"the input has more than %d Readers and Writers; use Bytes, Buffer or files, or several calls",
			na.MaxStreams-len(l.m.streams))
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

// streamSpecs returns the specifications of the call's streams: those of items, followed by those
// of pumps.
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

// bindStreams connects the streams of h to the pumps and to the item streams. It must be called
// once the call of h has started.
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

// takeStreams detaches the item streams from h after its call has completed with err. The pumps
// keep their streams.
func (l *loanSet) takeStreams(h *hg.Handle, err error) {
	all, _ := hghook.TakeStreams(h).([]*hg.Stream)
	if l.streams != nil {
		l.streams.endAttempt(all[:min(len(all), len(l.m.streams))], err)
	}
}

// finishPumps blocks until all bytes have been written to the caller's Writers or ctx is done. It
// must be called after a successful call.
func (l *loanSet) finishPumps(ctx context.Context, i int, to hg.Addr) error {
	for _, g := range l.pumps {
		if err := g.finish(ctx, l.n, i); err != nil {
			return hghook.EndedBy(ctx, brokenStream(l.m, to, err))
		}
	}
	return nil
}

// lentBytes returns the number of bytes of memory and files in the Sources and Sinks. Streams are
// not counted because their length is unknown.
func (l *loanSet) lentBytes() (n int64) {
	for _, h := range l.handles {
		n += h.Len()
	}
	return n
}

// movedBytes returns the number of bytes transferred to and from the Sources and Sinks.
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
	if len(l.pumps) == 0 && len(l.sinks) == 0 { // otherwise the size is unknown
		c.Size = l.lentBytes()
	}
	if l.streams != nil {
		c.Moved, c.Size, c.Flow = 0, 0, l.streams.flow()
	}
}

// spentBytes returns the number of bytes transferred by Readers, Writers and item streams, which
// another attempt could not transfer again.
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

// progress returns a counter that grows with each byte transferred, including bytes read from a
// caller's Reader into the buffer of a stream.
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

// revokeHandle revokes the access of peers to the memory of h and waits until it is no longer in
// use.
func (l *loanSet) revokeHandle(h *bulk.Handle) {
	if h.CloseWait(context.Background()) != nil {
		l.n.waitDrained()
	}
}

// failedBy returns an error that matches both err, the error of a call, and failed, the error of a
// caller's Reader or Writer. Its text omits that of failed if err already contains it. If err is an
// hg.Error, so is the result, so that the fate and the time of the call stay at the end of the text.
func failedBy(err, failed error) error {
	if e, ok := err.(*hg.Error); ok {
		both := *e
		both.Err = failedBy(e.Err, failed)
		return &both
	}
	if r, ok := hg.RemoteOf(err); ok && strings.Contains(r.Text, failed.Error()) {
		return repeatedCause{err, failed}
	}
	return fmt.Errorf("%w: %w", err, failed)
}

// A repeatedCause is an error whose text already contains that of cause, which it also matches.
type repeatedCause struct {
	error
	cause error
}

// Unwrap returns the error and its cause.
func (e repeatedCause) Unwrap() []error { return []error{e.error, e.cause} }

// fillSinks sets the lengths of the Sinks from the response and truncates their files.
func (l *loanSet) fillSinks() error {
	filled := l.filled
	for _, lent := range l.sinks {
		s, n := lent.sinkState, sinkFill{}
		if lent.hasTicket {
			if len(filled) == 0 {
				return fmt.Errorf("qs: method %s: the response has the lengths of %d Sinks, fewer than the call has: %w",
					l.m.name, len(l.filled), na.ErrProtocol)
			}
			n, filled = filled[0], filled[1:]
			if room := (Sink{s}).Len(); n.prefix < 0 || n.end < n.prefix || room >= 0 && n.end > room ||
				room < 0 && n.prefix != s.filled.Load() {
				return fmt.Errorf("qs: method %s: invalid Sink length in the response: prefix %d, end %d: %w",
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
		return fmt.Errorf("qs: method %s: the response has the lengths of %d Sinks, more than the call has: %w",
			l.m.name, len(l.filled), na.ErrProtocol)
	}
	return nil
}
