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

// A Source is memory, a file or a reader of the caller, in a field of the input. The handler reads
// it during the call, at its own pace. Both sides use the same type. The zero Source is empty.
//
//   - The caller makes it with Bytes, File or Reader; the handler reads it with Reader, ReadAt or
//     View.
//   - When Call has returned, whatever the error, nothing reads the caller's memory or file any
//     more, and no Read of its reader begins.
//   - At the handler it is valid until the handler returns: wait for goroutines that use it.
//   - Several calls may use one Source at the same time, but not a Reader, which refuses the second
//     call (ErrInvalid).
type Source struct{ s *sourceState }

// A sourceState is the state of a Source, on either side.
type sourceState struct {
	// At the caller one of segs, file and from is set.
	segs [][]byte
	file *os.File
	from io.Reader
	used streamUse // an attempt uses from

	lent    *lentTicket   // in the input of an attempt: its ticket
	handler *pulledSource // at the handler
}

// Bytes returns a Source of the memory segs, which is not copied. Do not change it until the call
// has returned. Up to 2 KiB are sent inside the request.
func Bytes(segs ...[]byte) Source { return Source{&sourceState{segs: nonNil(segs)}} }

// nonNil returns segs, or an empty slice instead of nil: a nil field of sourceState and sinkState
// is unset.
func nonNil(segs [][]byte) [][]byte {
	if segs == nil {
		return [][]byte{}
	}
	return segs
}

// File returns a Source of a whole regular file, independent of its offset. The file is mapped,
// without a copy, if possible. Keep f open until Call has returned. If the file is truncated during
// the call, the call fails. A file with content but the size 0, as in /proc, is sent as a stream,
// see Reader.
func File(f *os.File) Source { return Source{&sourceState{file: f}} }

// Reader returns a Source that reads r until EOF, as a stream of unknown length.
//
//   - r is not read before the handler reads. Then a goroutine reads r ahead of the handler, up to
//     256 KiB at a time and a few MiB in all.
//   - An error of r fails the call, as does a Read that panics or calls runtime.Goexit. The handler
//     gets the error after the data before it. The error of the call also matches the error of r,
//     unless that is a code of this package or an error of a context.
//   - A Read that is running when the call ends is interrupted by SetReadDeadline, if r has that
//     method (the deadline is cleared afterwards; a method that panics counts as missing). Otherwise
//     Call waits 50 ms for it, then returns, and the result of the Read is discarded.
//   - After a Read returned bytes or was abandoned, r cannot be used by another attempt or call
//     (ErrInvalid), and Retry does not repeat the call. If the handler has not read, r is unused.
//   - One attempt of one call at a time uses r: another one fails with ErrInvalid.
//
// A call has at most 15 Readers and Writers (na.MaxStreams).
func Reader(r io.Reader) Source { return Source{&sourceState{from: r}} }

// Len returns the number of bytes, or -1 if it is unknown: for a Reader, for a file that cannot be
// examined, and for a file with content but the size 0.
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

// totalLen returns the number of bytes in segs.
func totalLen(segs [][]byte) (n int64) {
	for _, seg := range segs {
		n += int64(len(seg))
	}
	return n
}

// Reader returns a reader of s for its handler; it also implements io.WriterTo. It reads ahead
// several chunks of 1 MiB. It is not safe for concurrent use. For a Reader of the caller all calls
// share one stream: a second reader continues at the position of the first. Reader panics if ctx is
// nil.
//
// Errors match ErrClosed (the handler has returned), ErrTimeout or ErrCanceled (ctx), and
// hg.ErrUnsupported (at the caller).
func (s Source) Reader(ctx context.Context) io.Reader {
	if ctx == nil {
		panic("qs: Source.Reader with a nil context")
	}
	if s.s == nil {
		return &pullReader{fail: io.EOF}
	}
	return s.s.handler.reader(ctx)
}

// ReadAt reads len(p) bytes at offset off, for the handler of s. It blocks until they have arrived,
// or the context of the request is done. At the end it returns fewer bytes and io.EOF. Errors match
// ErrClosed (the handler has returned) and hg.ErrUnsupported (for a Reader, and at the caller).
func (s Source) ReadAt(p []byte, off int64) (int, error) {
	if s.s == nil {
		return 0, io.EOF
	}
	return s.s.handler.readAt(p, off)
}

// View returns all bytes of s, for its handler. If both processes share memory, and the Source is
// memory of bulk.Alloc, it returns the caller's memory without a copy. Otherwise it pulls the
// bytes, and blocks until they have arrived or ctx is done.
//
// The bytes are valid until Close, or until the handler returns; see [bulk.NewView]. The error
// matches hg.ErrUnsupported for a Reader, and at the caller.
func (s Source) View(ctx context.Context) (*bulk.View, error) {
	if s.s == nil {
		return &bulk.View{}, nil
	}
	return s.s.handler.view(ctx)
}

// IsZero reports whether s is the zero Source. It is for codecs that omit empty fields.
func (s Source) IsZero() bool { return s.s == nil }

// MarshalBinary is for codecs. The error matches hg.ErrUnsupported outside of the input of a call.
// A handler cannot pass on a Source that it received.
func (s Source) MarshalBinary() ([]byte, error) {
	switch {
	case s.s == nil:
		return []byte{}, nil
	case s.s.lent == nil:
		return nil, errNotInCall("Source")
	}
	return s.s.lent.encoded(), nil
}

// errNotInCall returns the error of a Source or Sink that is encoded outside of the input of a
// call.
func errNotInCall(what string) error {
	return fmt.Errorf("qs: a %s can be encoded only in the input of Method.Call, by the process that created it: %w",
		what, hg.ErrUnsupported)
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
	tail *streamReader // the reader of a Reader of the caller; nil before the first Reader
}

// checkUsable returns an error if p cannot be used. p is nil at the caller.
func (p *pulledSource) checkUsable() error {
	if p == nil {
		return errNotInHandler("Source")
	}
	return p.checkMemory("Source")
}

// reader implements Source.Reader.
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

// readAt implements Source.ReadAt.
func (p *pulledSource) readAt(b []byte, off int64) (int, error) {
	if err := p.checkUsable(); err != nil {
		return 0, err
	}
	if p.isStream() {
		return 0, fmt.Errorf("qs: source: the Source is a stream; use Source.Reader: %w",
			hg.ErrUnsupported)
	}
	r, err := bulk.NewReaderAt(p.req.handlerContext(), p.req.r.HG(),
		bulk.Stream{Peer: p.peer, Handle: p.handle})
	if err != nil {
		return 0, err
	}
	n, err := r.ReadAt(b, off)
	return n, p.causeOf("Source", err)
}

// view implements Source.View.
func (p *pulledSource) view(ctx context.Context) (*bulk.View, error) {
	err := p.checkUsable()
	switch {
	case err != nil:
		return nil, err
	case p.isStream():
		return nil, fmt.Errorf("qs: source: the Source is a stream; use Source.Reader: %w",
			hg.ErrUnsupported)
	}
	v, err := bulk.NewView(ctx, p.req.r.HG(), bulk.Stream{Peer: p.peer, Handle: p.handle})
	if err != nil {
		return nil, p.causeOf("Source", err)
	}
	p.stopAtReturn(func() { _ = v.Close() })
	return v, nil
}

// A pullReader is a bulk.Reader that ends when the handler returns.
type pullReader struct {
	r    *bulk.Reader
	p    *pulledSource
	stop func() // closes r
	fail error  // error of every Read, if not nil
}

// Read implements io.Reader.
func (r *pullReader) Read(b []byte) (int, error) {
	if r.fail != nil {
		return 0, r.fail
	}
	n, err := r.r.Read(b)
	return n, r.onEnd(err)
}

// WriteTo implements io.WriterTo, without copying into a buffer of its own.
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

// onEnd releases the buffers after the last byte, and returns the error of the operation.
func (r *pullReader) onEnd(err error) error {
	if err == io.EOF {
		r.fail = io.EOF
		r.stop()
	}
	return r.p.causeOf("Source", err)
}

// borrowedMem is the common part of a pulledSource and a pushedSink.
type borrowedMem struct {
	ticket
	req  *request
	peer hg.Addr

	mu     sync.Mutex     // guards the fields below
	ended  bool           // the handler has returned
	stops  map[int]func() // functions to call when the handler returns, by id
	nextID int
}

// errNotInHandler returns the error of a Source or Sink that is used outside of its handler.
func errNotInHandler(what string) error {
	return fmt.Errorf("qs: a %s can be read or written only by the handler that received it: %w", what,
		hg.ErrUnsupported)
}

// checkMemory returns an error if the handler has returned.
func (b *borrowedMem) checkMemory(what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return fmt.Errorf("qs: %s used after its handler returned: %w", what, hg.ErrClosed)
	}
	return nil
}

// causeOf returns the error of an operation that ended with err. If the handler has returned, that
// is the cause.
func (b *borrowedMem) causeOf(what string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if over := b.checkMemory(what); over != nil {
		return over
	}
	return err
}

// stopAtReturn registers stop to be called when the handler returns. now calls it immediately
// instead.
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

// end ends the use of the memory when the handler has returned.
func (b *borrowedMem) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	for i := 1; i <= b.nextID; i++ { // in order, so that simulations are reproducible
		if stop := b.stops[i]; stop != nil {
			stop()
		}
	}
	b.stops = nil
}

// mapFile is bulk.MapFile. Tests replace it to simulate systems that cannot map files.
var mapFile = bulk.MapFile

// isUnsized reports whether f has content although its size is 0, as files in /proc do.
func isUnsized(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() != 0 || !info.Mode().IsRegular() {
		return false
	}
	n, _ := f.ReadAt(make([]byte, 1), 0)
	return n == 1
}
