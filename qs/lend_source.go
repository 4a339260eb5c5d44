package qs

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Source is bytes that a caller lends for the time of its call, in a field of the input. The
// handler pulls them when it has room. Both sides use the same type. The zero Source is empty.
//
//   - Made by Bytes, File or Reader; read in the handler by Reader, ReadAt or View.
//   - When Call has returned, whatever the error, nothing reads the caller's memory or file any more,
//     and no Read of its reader begins.
//   - In the handler it is good until that returns: wait for goroutines that use it.
//   - Several calls at once may use one Source, but for a Reader, which refuses the second
//     (ErrInvalid).
type Source struct{ s *sourceState }

// A sourceState is a Source at one side.
type sourceState struct {
	segs [][]byte  // of the caller: one of these three
	file *os.File  //
	from io.Reader //
	used streamUse // of Reader

	lent    *lentTicket   // in the input of one attempt
	handler *pulledSource // of a handler
}

// Bytes lends memory, which is not copied. Do not change it until the call has returned. Up to 2
// KiB travel inside the request.
func Bytes(segs ...[]byte) Source { return Source{&sourceState{segs: nonNil(segs)}} }

// nonNil tells memory of no segments from nothing at all.
func nonNil(segs [][]byte) [][]byte {
	if segs == nil {
		return [][]byte{}
	}
	return segs
}

// File lends the bytes of a regular file from its beginning to its end, wherever f stands, mapped where that is possible, without a copy. f is open until Call has returned. If
// somebody cuts it short meanwhile the call fails. One that holds bytes although its size is 0, as those of /proc, is lent as a stream: see
// Reader.
func File(f *os.File) Source { return Source{&sourceState{file: f}} }

// Reader lends what r gives, up to its end, as a stream whose length is not known.
//
//   - Nothing is read from r before the handler reads. Then r is read ahead of the handler, up to 256
//     KiB at a time and some MiB in all, on a goroutine of its own.
//   - An error of r fails the call, and so does a Read that panics or ends its goroutine. The handler
//     reads the error behind what r had given. The error of the call matches it beside its own code,
//     unless it is a code of this package or an error of a context.
//   - A Read still running when the call ends, at its deadline for example, is interrupted by
//     SetReadDeadline if r has that (the deadline is cleared afterwards; one that panics counts as
//     none). Otherwise Call waits for it for 50 ms, then returns, and what that Read returns is
//     discarded.
//   - When a Read has given bytes, or was left running, r serves no other attempt and no other call
//     (ErrInvalid), and Retry does not repeat the call. A handler that has not begun to read has used
//     nothing of it.
//   - One attempt of one call uses r at a time: another one fails with ErrInvalid.
//
// A call lends at most 15 Readers and Writers (na.MaxStreams).
func Reader(r io.Reader) Source { return Source{&sourceState{from: r}} }

// Len returns the number of bytes, or -1 if it is not known: that of Reader, of a file that cannot be looked at, and of one that
// is longer than it says.
func (s Source) Len() int64 {
	switch {
	case s.s == nil:
		return 0
	case s.s.handler != nil:
		return s.s.handler.size()
	case s.s.segs != nil:
		return totalLen(s.s.segs)
	case s.s.file != nil:
		if info, err := s.s.file.Stat(); err == nil && !isUnsized(s.s.file) {
			return info.Size()
		}
		return -1
	case s.s.from != nil:
		return -1
	}
	return 0
}

func totalLen(segs [][]byte) (n int64) {
	for _, seg := range segs {
		n += int64(len(seg))
	}
	return n
}

// Reader returns a reader of s for the handler that got it, an io.WriterTo too: it pulls several pieces of 1 MiB ahead. One
// goroutine at a time uses it. Its errors match ErrClosed when the handler has returned, ErrTimeout or ErrCanceled when
// ctx has ended, at its deadline or before, and hg.ErrUnsupported at the caller. Of a Reader there is one stream: a second Reader goes on where the first is.
// Reader panics when ctx is nil.
func (s Source) Reader(ctx context.Context) io.Reader {
	if ctx == nil {
		panic("qs: Source.Reader with a nil context")
	}
	if s.s == nil {
		return &pullReader{fail: io.EOF}
	}
	return s.s.handler.reader(ctx)
}

// ReadAt pulls len(p) bytes from off on into p, for the handler that got s. It returns io.EOF with fewer bytes at the end, ErrClosed
// when the handler has returned, and hg.ErrUnsupported for a Reader and at the caller. The end of the request's context cancels it.
func (s Source) ReadAt(p []byte, off int64) (int, error) {
	if s.s == nil {
		return 0, io.EOF
	}
	return s.s.handler.readAt(p, off)
}

// View returns all bytes of s, for the handler that got it: where the two share memory and the caller lends what bulk.Alloc has returned,
// these are the caller's own, which are not copied; else they are pulled, which blocks until ctx ends at the latest. See [bulk.NewView] for
// what may be done with them. They are there until Close, and no longer than the handler runs. The error matches hg.ErrUnsupported for a Reader
// and at the caller.
func (s Source) View(ctx context.Context) (*bulk.View, error) {
	if s.s == nil {
		return &bulk.View{}, nil
	}
	return s.s.handler.view(ctx)
}

// IsZero reports whether s is the zero Source. It is for codecs that leave empty fields out.
func (s Source) IsZero() bool { return s.s == nil }

// MarshalBinary is for codecs. The error matches hg.ErrUnsupported outside of the input of a call: a Source that a handler has got
// cannot be lent on.
func (s Source) MarshalBinary() ([]byte, error) {
	switch {
	case s.s == nil:
		return []byte{}, nil
	case s.s.lent == nil:
		return nil, errNotInCall("Source")
	}
	return s.s.lent.encoded(), nil
}

func errNotInCall(what string) error {
	return fmt.Errorf("qs: a %s travels in the input of a Method's Call only, from who lends the memory: %w", what, hg.ErrUnsupported)
}

// UnmarshalBinary is for codecs. The error matches ErrProtocol.
func (s *Source) UnmarshalBinary(b []byte) error {
	t, err := parseTicket(b, "Source")
	if err != nil {
		return fmt.Errorf("qs: source: %w", err)
	}
	s.s = nil
	if t != nil {
		s.s = &sourceState{handler: &pulledSource{borrowedMem: borrowedMem{ticket: *t}}}
	}
	return nil
}

// A pulledSource is a Source at its handler.
type pulledSource struct {
	borrowedMem
	tail *streamReader // of Reader
}

// checkUsable says why p cannot be used; it is nil at the caller.
func (p *pulledSource) checkUsable() error {
	if p == nil {
		return errNotInHandler("Source")
	}
	return p.checkMemory("Source")
}

func (p *pulledSource) reader(ctx context.Context) io.Reader {
	if err := p.checkUsable(); err != nil {
		return &pullReader{fail: err}
	}
	if p.isStream() {
		if p.tail == nil {
			p.tail = newStreamReader(p)
		}
		p.tail.ctx = ctx
		return p.tail
	}
	r, err := bulk.NewReader(ctx, p.req.r.HG(), bulk.Stream{Peer: p.peer, Handle: p.handle})
	if err != nil {
		return &pullReader{fail: err}
	}
	return &pullReader{r: r, p: p, stop: p.stopAtReturn(func() { _ = r.Close() })}
}

func (p *pulledSource) readAt(b []byte, off int64) (int, error) {
	if err := p.checkUsable(); err != nil {
		return 0, err
	}
	if p.isStream() {
		return 0, fmt.Errorf("qs: source: a Source made by Reader is a stream, which is read from its beginning to its end, by Reader: %w", hg.ErrUnsupported)
	}
	r, err := bulk.NewReaderAt(p.req.handlerContext(), p.req.r.HG(), bulk.Stream{Peer: p.peer, Handle: p.handle})
	if err != nil {
		return 0, err
	}
	n, err := r.ReadAt(b, off)
	return n, p.causeOf("Source", err)
}

func (p *pulledSource) view(ctx context.Context) (*bulk.View, error) {
	err := p.checkUsable()
	switch {
	case err != nil:
		return nil, err
	case p.isStream():
		return nil, fmt.Errorf("qs: source: a Source made by Reader is a stream, which is read from its beginning to its end, by Reader: %w", hg.ErrUnsupported)
	}
	v, err := bulk.NewView(ctx, p.req.r.HG(), bulk.Stream{Peer: p.peer, Handle: p.handle})
	if err != nil {
		return nil, p.causeOf("Source", err)
	}
	p.stopAtReturn(func() { _ = v.Close() })
	return v, nil
}

// A pullReader is a bulk.Reader that ends with its request.
type pullReader struct {
	r    *bulk.Reader
	p    *pulledSource
	stop func()
	fail error
}

func (r *pullReader) Read(b []byte) (int, error) {
	if r.fail != nil {
		return 0, r.fail
	}
	n, err := r.r.Read(b)
	return n, r.onEnd(err)
}

// WriteTo implements io.WriterTo: without a copy of its own.
func (r *pullReader) WriteTo(w io.Writer) (int64, error) {
	if r.fail != nil {
		if r.fail == io.EOF {
			return 0, nil
		}
		return 0, r.fail
	}
	n, err := r.r.WriteTo(w)
	if err == nil {
		_ = r.onEnd(io.EOF)
	}
	return n, r.onEnd(err)
}

// onEnd gives the buffers back at the end.
func (r *pullReader) onEnd(err error) error {
	if err == io.EOF {
		r.fail = io.EOF
		r.stop()
	}
	return r.p.causeOf("Source", err)
}

// A borrowedMem is what a Source and a Sink at their handler have in common.
type borrowedMem struct {
	ticket
	req  *request
	peer hg.Addr

	mu     sync.Mutex // guards the fields below
	ended  bool       // the handler has returned
	stops  map[int]func()
	nextID int
}

func errNotInHandler(what string) error {
	return fmt.Errorf("qs: a %s is used by the handler that got it: %w", what, hg.ErrUnsupported)
}

// checkMemory says why the memory cannot be used.
func (b *borrowedMem) checkMemory(what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return fmt.Errorf("qs: the handler that got the %s has returned; it is used until then: %w", what, hg.ErrClosed)
	}
	return nil
}

// causeOf returns the error of an operation that ended with err: what was under way when the handler returned says so.
func (b *borrowedMem) causeOf(what string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if over := b.checkMemory(what); over != nil {
		return over
	}
	return err
}

// stopAtReturn has stop called when the handler returns, unless what it returns is before.
func (b *borrowedMem) stopAtReturn(stop func()) (now func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		stop()
		return func() {}
	}
	if b.stops == nil {
		b.stops = map[int]func(){}
	}
	b.nextID++
	id := b.nextID
	b.stops[id] = stop
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.stops, id)
		stop()
	}
}

func (b *borrowedMem) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	for i := 1; i <= b.nextID; i++ { // in order: a simulated world replays
		if stop := b.stops[i]; stop != nil {
			stop()
		}
	}
	b.stops = nil
}

// mapFile is replaced by tests of systems where files cannot be mapped.
var mapFile = bulk.MapFile

// isUnsized reports whether f holds bytes although its size is 0, as files of /proc do: they are read to their end.
func isUnsized(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() != 0 || !info.Mode().IsRegular() {
		return false
	}
	n, _ := f.ReadAt(make([]byte, 1), 0)
	return n == 1
}
