package ledger

import (
	"errors"
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A lend is the Source, Sink, or both, of a call, each of memory or of a stream. It checks that
// memory and streams are not accessed after the call has ended.
type lend struct {
	in      moveInput
	streams bool
	source  []byte // of mem
	sink    []byte
	from    *reader
	into    *writer
}

// poison fills memory whose call has ended.
const poison = 0xE7

func (c *caller) newLend(streams bool) *lend {
	l := &lend{streams: streams}
	l.in.At = c.rng.IntN(2) == 0
	n, half := c.rng.IntN(3), c.MaxData/2
	if n != 0 {
		l.source = c.mem[:c.drawSize(half)]
	}
	if n != 1 {
		l.sink = c.mem[half : half+c.drawSize(half)]
	}
	if streams {
		after, end := -1, c.rng.IntN(3)
		if c.rng.IntN(4) == 0 && (end > 0 || c.Off&DeedExit == 0) {
			after = c.rng.IntN(3)
		}
		if n != 0 {
			l.from = &reader{after: after, how: end}
		}
		if n != 1 {
			l.into = &writer{after: after, how: end}
		}
	}
	return l
}

// setInput sets the sources and sinks in the input of a call.
func (l *lend) setInput(r *request) {
	r.checkPoison()
	l.in.Ask, l.in.N = r.in, len(l.sink)
	fillPattern(l.source, r.id, 0)
	if l.source != nil {
		l.in.From = qs.Bytes(l.source)
	}
	if l.sink != nil {
		l.in.To = qs.Buffer(l.sink)
	}
	if l.from != nil {
		l.from.r, l.from.left = r, len(l.source)
		l.in.From = qs.Reader(l.from)
	}
	if l.into != nil {
		l.into.r = r
		l.in.To = qs.Writer(l.into)
	}
}

// checkEnd checks the bytes that have arrived, and makes later access fail.
func (l *lend) checkEnd(r *request, err error) {
	if l.from != nil {
		l.from.over.Store(true)
	}
	if l.into != nil {
		l.into.over.Store(true)
		if err == nil && l.into.got != len(l.sink) {
			r.Book.addWrong("call %v: %d bytes were written of %d", r.id, l.into.got, len(l.sink))
		}
	} else if err == nil && !isPattern(l.sink, r.id, 0) {
		r.Book.addWrong("call %v: wrong bytes in its memory", r.id)
	}
	r.taken = [][]byte{l.source, l.sink}
	for _, mem := range r.taken {
		for i := range mem {
			mem[i] = poison
		}
	}
}

// checkPoison checks that memory was not written after its call had ended.
func (c *caller) checkPoison() {
	for _, mem := range c.taken {
		if slices.ContainsFunc(mem, func(b byte) bool { return b != poison }) {
			c.Book.addWrong("memory was written after a call had ended, before call %v", ID(c.Number<<perOrigin|c.calls.Load()-1))
		}
	}
	c.taken = nil
}

// stop ends a stream after some pieces, in one of the ways that there are.
func stop(how int) error {
	switch how {
	case 0:
		runtime.Goexit()
	case 1:
		panic("asked to panic")
	}
	return errors.New("asked to fail")
}

// A reader gives the bytes of its call.
type reader struct {
	r          *request
	at, left   int
	after, how int // number of Reads after which it stops; -1 for never
	over       atomic.Bool
}

func (s *reader) Read(p []byte) (int, error) {
	if s.over.Load() {
		s.r.Book.addWrong("call %v: its reader is read after its end", s.r.id)
	}
	if s.after--; s.after == -1 {
		return 0, stop(s.how)
	}
	if s.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), s.left, 10_000)
	fillPattern(p[:n], s.r.id, s.at)
	s.at, s.left = s.at+n, s.left-n
	return n, nil
}

// A writer checks the bytes of its call.
type writer struct {
	r          *request
	got        int
	after, how int
	over       atomic.Bool
}

func (s *writer) Write(p []byte) (int, error) {
	if s.over.Load() {
		s.r.Book.addWrong("call %v: its writer is written to after its end", s.r.id)
	}
	if s.after--; s.after == -1 {
		return 0, stop(s.how)
	}
	if !isPattern(p, s.r.id, s.got) {
		s.r.Book.addWrong("call %v: its writer gets wrong bytes at %d", s.r.id, s.got)
	}
	s.got += len(p)
	return len(p), nil
}
