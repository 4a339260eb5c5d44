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

// A Source is memory, a file or a reader of the caller, passed in a field of the input. The handler
// reads it during the call, at its own pace. Both sides use the same type. The zero Source is
// empty.
//
//   - The caller creates it with Bytes, File or Reader. The handler reads it with Source.Reader,
//     ReadAt or View.
//   - Once Call has returned, even with an error, nothing reads the caller's memory or file, and no
//     further Read of its reader starts.
//   - At the handler it is valid until the handler returns. The handler must wait for goroutines that
//     use it.
//   - Several calls may use the same Source concurrently, except for a Reader, with which the second
//     call fails (ErrInvalid).
type Source struct{ s *sourceState }

// A sourceState is the state of a Source, on either side.
type sourceState struct {
	// At the caller, exactly one of segs, file and from is set.
	segs [][]byte
	file *os.File
	from io.Reader
	used streamUse // reports whether an attempt uses from

	lent    *lentTicket   // ticket of the Source in the input of an attempt
	handler *pulledSource // set at the handler
}

// Bytes returns a Source that reads the memory segs without copying it. The caller must not modify
// the memory until the call has returned. Up to 2 KiB are sent inside the request.
func Bytes(segs ...[]byte) Source { return Source{&sourceState{segs: nonNil(segs)}} }

// nonNil returns segs, or an empty slice if segs is nil. A nil field in sourceState or sinkState
// means that the field is unset.
func nonNil(segs [][]byte) [][]byte {
	if segs == nil {
		return [][]byte{}
	}
	return segs
}

// File returns a Source of a whole regular file, regardless of its offset. The file is mapped if
// possible, which avoids a copy. The caller must keep f open until Call has returned. If the file
// is truncated during the call, the call fails. A file that has content but reports a size of 0, as
// in /proc, is sent as a stream. See Reader.
func File(f *os.File) Source { return Source{&sourceState{file: f}} }

// Reader returns a Source that reads r until EOF, as a stream of unknown length.
//
//   - r is not read before the handler reads. After that, a goroutine reads ahead of the handler, up
//     to 256 KiB at a time and a few MiB in all.
//   - An error of r fails the call, as does a Read that panics or calls runtime.Goexit. The handler
//     receives the error after the data that precedes it. The error of the call also matches the
//     error of r, unless that is a code of this package or an error of a context.
//   - A Read that is running when the call completes is interrupted by SetReadDeadline if r has that
//     method. (The deadline is cleared afterward. A method that panics is treated as missing.)
//     Otherwise Call waits 50 ms for it before it returns, and the result of the Read is discarded.
//   - After a Read has returned bytes or has been abandoned, r cannot be used by another attempt or
//     call (ErrInvalid), and Retry does not repeat the call. If the handler has not read, r is still
//     unused.
//   - Only one attempt of one call can use r at a time. Another one fails with ErrInvalid.
//
// A call has at most 15 Readers and Writers (na.MaxStreams).
func Reader(r io.Reader) Source { return Source{&sourceState{from: r}} }

// Len returns the number of bytes, or -1 if it is unknown. It is unknown for a Reader, for a file
// that cannot be examined, and for a file that has content but reports a size of 0.
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

// totalLen returns the total number of bytes in segs.
func totalLen(segs [][]byte) (n int64) {
	for _, seg := range segs {
		n += int64(len(seg))
	}
	return n
}

// Reader returns a reader of s, for use by the handler. It also implements io.WriterTo. It reads
// ahead by several chunks of 1 MiB, and is not safe for concurrent use. For a Reader of the caller,
// all calls share one stream, so that a second reader continues at the position of the first.
// Reader panics if ctx is nil.
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

// ReadAt reads len(p) bytes at offset off. It is for use by the handler. It blocks until the bytes
// have arrived or the request's context is done. At the end of s it returns fewer bytes and io.EOF.
// Errors match ErrClosed (the handler has returned) and hg.ErrUnsupported (for a Reader, and at the
// caller).
func (s Source) ReadAt(p []byte, off int64) (int, error) {
	if s.s == nil {
		return 0, io.EOF
	}
	return s.s.handler.readAt(p, off)
}

// View returns all bytes of s, for use by the handler. If both processes share memory and the
// Source was allocated by bulk.Alloc, View returns the caller's memory without a copy. Otherwise it
// transfers the bytes, and blocks until they have arrived or ctx is done.
//
// The bytes are valid until Close is called or the handler returns. See [bulk.NewView]. The error
// matches hg.ErrUnsupported for a Reader, and at the caller.
func (s Source) View(ctx context.Context) (*bulk.View, error) {
	if s.s == nil {
		return &bulk.View{}, nil
	}
	return s.s.handler.view(ctx)
}

// IsZero reports whether s is the zero Source. Codecs call it to omit empty fields.
func (s Source) IsZero() bool { return s.s == nil }

// MarshalBinary implements encoding.BinaryMarshaler for codecs. Except in the input of a call, it
// returns an error that matches hg.ErrUnsupported. A handler cannot pass a Source that it received
// to another call.
func (s Source) MarshalBinary() ([]byte, error) {
	switch {
	case s.s == nil:
		return []byte{}, nil
	case s.s.lent == nil:
		return nil, errNotInCall("Source")
	}
	return s.s.lent.encoded(), nil
}

// errNotInCall returns the error for a Source or Sink that is encoded other than in the input of a
// call.
func errNotInCall(what string) error {
	return fmt.Errorf("qs: a %s can be encoded only in the input of Method.Call, by the process that created it: %w",
		what, hg.ErrUnsupported)
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler for codecs. Errors match ErrProtocol.
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

// A pulledSource is the handler's side of a Source.
type pulledSource struct {
	borrowedMem
	tail *streamReader // reader for a Reader of the caller; nil before the first call of Reader
}

// checkUsable returns an error if p cannot be used. At the caller, p is nil.
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

// A pullReader is a bulk.Reader that is closed when the handler returns.
type pullReader struct {
	r    *bulk.Reader
	p    *pulledSource
	stop func() // closes r
	fail error  // if not nil, error returned by every Read
}

// Read implements io.Reader.
func (r *pullReader) Read(b []byte) (int, error) {
	if r.fail != nil {
		return 0, r.fail
	}
	n, err := r.r.Read(b)
	return n, r.onEnd(err)
}

// WriteTo implements io.WriterTo. It avoids copying into an intermediate buffer.
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

// onEnd releases the buffers if err is io.EOF. It returns the error to report for an operation that
// returned err.
func (r *pullReader) onEnd(err error) error {
	if err == io.EOF {
		r.fail = io.EOF
		r.stop()
	}
	return r.p.causeOf("Source", err)
}

// borrowedMem holds the fields that pulledSource and pushedSink have in common.
type borrowedMem struct {
	ticket
	req  *request
	peer hg.Addr

	mu     sync.Mutex     // guards the fields below
	ended  bool           // the handler has returned
	stops  map[int]func() // functions to call when the handler returns, keyed by id
	nextID int
}

// errNotInHandler returns the error for a Source or Sink that is used other than by its handler.
func errNotInHandler(what string) error {
	return fmt.Errorf("qs: a %s can be read or written only by the handler that received it: %w", what,
		hg.ErrUnsupported)
}

// checkMemory returns an error if the handler has returned. what, which is used in the error text,
// is "Source" or "Sink".
func (b *borrowedMem) checkMemory(what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return fmt.Errorf("qs: %s used after its handler returned: %w", what, hg.ErrClosed)
	}
	return nil
}

// causeOf returns the error to report for an operation that failed with err. If the handler has
// returned, that is an error that matches ErrClosed. what is as for checkMemory.
func (b *borrowedMem) causeOf(what string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if over := b.checkMemory(what); over != nil {
		return over
	}
	return err
}

// stopAtReturn arranges for stop to be called when the handler returns. The caller may call now to
// run stop earlier. If the handler has already returned, stopAtReturn calls stop itself.
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

// end marks the handler as returned, so that the memory can no longer be used, and calls the
// functions in stops.
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

// mapFile is bulk.MapFile, except in tests that simulate systems on which files cannot be mapped.
var mapFile = bulk.MapFile

// isUnsized reports whether f has content although its size is 0, as for files in /proc.
func isUnsized(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Size() != 0 || !info.Mode().IsRegular() {
		return false
	}
	n, _ := f.ReadAt(make([]byte, 1), 0)
	return n == 1
}
