package qs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Sink is a buffer, file or writer of the caller, passed in a field of the input. The handler
// writes to it during the call. Both sides use the same type. The zero Sink has size 0.
//
//   - The caller creates it with Buffer, FileBuffer or Writer. The handler fills it with
//     Sink.Writer, WriteAt or SendFile.
//   - Once Call has returned, even with an error, nothing writes to the caller's memory or file, and
//     no further Write to its writer starts.
//   - After an error, the contents of a Buffer are undefined, and a Writer has received a prefix of
//     the data.
//   - A Sink can be used by only one attempt of one call at a time. A second one fails with
//     ErrInvalid. Filled describes the last attempt.
type Sink struct{ s *sinkState }

// A sinkState is the state of a Sink, on either side.
type sinkState struct {
	// At the caller, exactly one of segs, file and into is set.
	segs [][]byte
	file *os.File // the caller's file, which is extended to size bytes
	size int64
	into io.Writer
	used streamUse // in use by an attempt

	fileSink *sinkState // the FileBuffer to which into writes because the file cannot be mapped; nil otherwise

	filled atomic.Int64

	lent    *lentTicket // ticket of the Sink in the input of an attempt
	handler *pushedSink // set at the handler
}

// Buffer returns a Sink that stores data in segs. The caller must not use segs until the call has
// returned. Filled then returns the number of bytes stored.
func Buffer(segs ...[]byte) Sink { return Sink{&sinkState{segs: nonNil(segs)}} }

// FileBuffer returns a Sink that writes to the first size bytes of the regular file f, which must
// be open for reading and writing. The file offset is ignored.
//
//   - The file is mapped, which avoids a copy, if the operating system and file system support that.
//     Otherwise it is written as a stream, and the handler can use only Sink.Writer.
//   - The file is extended to size bytes. After a successful call it is truncated after the last
//     byte written. Gaps between writes keep their contents, which are zeros in a new file.
//   - If another process truncates the file during the call, the call fails or the contents read
//     as zeros.
func FileBuffer(f *os.File, size int64) Sink { return Sink{&sinkState{file: f, size: size}} }

// Writer returns a Sink that writes data of any length to w.
//
//   - A goroutine in the caller's process writes the handler's data to w in chunks of up to 256 KiB,
//     with a few MiB in flight. Call returns when all data has been written, which may be after the
//     handler has returned.
//   - An error of w fails the call, like an error of a Reader. Retry does not repeat a call that has
//     written bytes.
//   - A Write that is running when the call completes has 50 ms to return, because interrupting it
//     may break a TLS connection. After that, it is interrupted by SetWriteDeadline if w has that
//     method. (The deadline is cleared afterward.) Otherwise it may still be running when Call
//     returns.
func Writer(w io.Writer) Sink { return Sink{&sinkState{into: w}} }

// Len returns the size in bytes, or -1 for a Writer, which has no limit.
func (s Sink) Len() int64 {
	switch {
	case s.s == nil:
		return 0
	case s.s.handler != nil && s.s.handler.isStream(), s.s.into != nil:
		return -1
	case s.s.handler != nil:
		return s.s.handler.handle.Len()
	case s.s.file != nil:
		return s.s.size
	}
	return totalLen(s.s.segs)
}

// Filled returns the number of contiguous bytes that were written from the beginning. It is for use
// at the caller. Handlers that use WriteAt may leave gaps. If the handler exceeded the size, Filled
// returns 0, and the error of the call is hg.ErrRemote unless the handler set a code. After an
// error, the result is valid only for a Writer.
func (s Sink) Filled() int64 {
	if s.s == nil {
		return 0
	}
	return s.s.filled.Load()
}

// Writer returns a writer to s, for use by the handler. It also implements io.ReaderFrom. All calls
// of Writer return the same stream, which is not safe for concurrent use. Writer panics if ctx is
// nil.
//
//   - Writes are buffered, with several chunks of 1 MiB in flight. For a Writer of the caller, up to
//     1 MiB is buffered at the handler, which may return before that data has been sent.
//   - A Write blocks until ctx is done. Data of earlier Writes is sent nevertheless. If the handler
//     returns without an error, the remaining data is flushed until the request is done or the context
//     that an interceptor passed to next is done. If the flush fails, the call fails.
//   - If the caller's writer fails, a later Write returns its error. If the handler has already
//     returned, only the caller receives it.
//   - A Write after the handler has returned fails with ErrClosed. Data written earlier is flushed.
//   - Errors match hg.ErrOverflow (the size is exceeded), ErrClosed (the handler has returned),
//     ErrTimeout or ErrCanceled (ctx), and hg.ErrUnsupported (at the caller).
func (s Sink) Writer(ctx context.Context) io.Writer {
	if ctx == nil {
		panic("qs: Sink.Writer with a nil context")
	}
	if s.s == nil {
		return emptySinkWriter{}
	}
	return s.s.handler.writer(ctx)
}

// WriteAt writes p at offset off. It is for use by the handler. It blocks until p has arrived or
// the handler's context is done. Errors match hg.ErrOverflow (the size is exceeded), ErrClosed (the
// handler has returned), and hg.ErrUnsupported (for a Writer, and at the caller).
func (s Sink) WriteAt(p []byte, off int64) (int, error) {
	if s.s == nil {
		if len(p) == 0 && off == 0 {
			return 0, nil
		}
		return 0, errNoRoom
	}
	return s.s.handler.writeAt(p, off)
}

// SendFile writes the whole regular file f to s, like Sink.Writer, and returns the number of bytes
// written. If f can be mapped, it sends directly from the page cache. Errors are those documented
// for Sink.Writer.
func (s Sink) SendFile(ctx context.Context, f *os.File) (int64, error) {
	if s.s == nil {
		return io.Copy(emptySinkWriter{}, io.NewSectionReader(f, 0, 1<<62))
	}
	return s.s.handler.sendFile(ctx, f)
}

// errNoRoom is the error of writing to the zero Sink, as which an empty Buffer or FileBuffer arrives.
var errNoRoom = na.WithText(hg.ErrOverflow,
	"qs: sink: the caller provided no Buffer, FileBuffer or Writer, or the Buffer has 0 bytes")

// An emptySinkWriter is the Writer of the zero Sink.
type emptySinkWriter struct{}

// Write implements io.Writer.
func (emptySinkWriter) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return 0, errNoRoom
}

// ReadFrom implements io.ReaderFrom. It fails if r has at least one byte.
func (w emptySinkWriter) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// IsZero reports whether s is the zero Sink. Codecs call it to omit empty fields.
func (s Sink) IsZero() bool { return s.s == nil }

// MarshalBinary implements encoding.BinaryMarshaler for codecs. Except in the input of a call, it
// returns an error that matches hg.ErrUnsupported.
func (s Sink) MarshalBinary() ([]byte, error) {
	switch {
	case s.s == nil:
		return []byte{}, nil
	case s.s.lent == nil:
		return nil, errNotInCall("Sink")
	}
	return s.s.lent.encoded(), nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler for codecs. Errors match ErrProtocol.
func (s *Sink) UnmarshalBinary(b []byte) error {
	t, err := parseTicket(b, "Sink")
	if err != nil {
		return fmt.Errorf("qs: sink: %w", err)
	}
	s.s = nil
	if t != nil {
		s.s = &sinkState{handler: &pushedSink{borrowedMem: borrowedMem{ticket: *t}}}
	}
	return nil
}

// A failWriter is an io.Writer that always fails with err.
type failWriter struct{ err error }

// Write implements io.Writer.
func (w failWriter) Write([]byte) (int, error) { return 0, w.err }

// ReadFrom implements io.ReaderFrom.
func (w failWriter) ReadFrom(io.Reader) (int64, error) { return 0, w.err }

// A pushedSink is the handler's side of a Sink.
type pushedSink struct {
	borrowedMem
	w    *pushWriter // result of Writer; nil before its first call
	full []extent    // ranges written by WriteAt, in the order of the calls
}

// An extent is the half-open byte range [from, to).
type extent struct{ from, to int64 }

// checkUsable returns an error if p cannot be used. At the caller, p is nil.
func (p *pushedSink) checkUsable() error {
	if p == nil {
		return errNotInHandler("Sink")
	}
	return p.checkMemory("Sink")
}

// writer implements Sink.Writer.
func (p *pushedSink) writer(ctx context.Context) io.Writer {
	if err := p.checkUsable(); err != nil {
		return failWriter{err}
	}
	w := p.writerOf()
	if err := w.begin(); err != nil {
		return failWriter{err}
	}
	defer w.unlock()
	w.ctx = ctx
	return w
}

// writerOf returns the pushWriter of p, allocating it on the first call.
func (p *pushedSink) writerOf() *pushWriter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w == nil {
		p.w = &pushWriter{p: p}
		if p.isStream() {
			p.w.stream = newStreamWriter(p)
		}
	}
	return p.w
}

// writeAt implements Sink.WriteAt.
func (p *pushedSink) writeAt(b []byte, off int64) (int, error) {
	if err := p.checkUsable(); err != nil {
		return 0, err
	}
	switch {
	case p.isStream():
		return 0, fmt.Errorf("qs: sink: the caller's Sink is a stream; use Sink.Writer: %w",
			hg.ErrUnsupported)
	case off < 0 || int64(len(b)) > p.handle.Len()-off:
		return 0, fmt.Errorf("qs: sink: write of %d bytes at offset %d exceeds the Sink's size of %d: %w",
			len(b), off, p.handle.Len(), hg.ErrOverflow)
	case len(b) == 0:
		return 0, nil
	}
	if err := p.push(p.req.handlerContext(), b, off); err != nil {
		return 0, p.causeOf("Sink", err)
	}
	p.mu.Lock()
	p.full = append(p.full, extent{off, off + int64(len(b))})
	if len(p.full) > 64 {
		p.full = mergeExtents(p.full)
	}
	p.mu.Unlock()
	return len(b), nil
}

// push transfers b to offset off of the Sink and waits until it has arrived.
func (p *pushedSink) push(ctx context.Context, b []byte, off int64) error {
	hctx := p.req.r.HG()
	local, err := bulk.Create(hctx, bulk.Options{}, b)
	if err != nil {
		return err
	}
	defer func() { _ = local.Close() }()
	return bulk.Do(ctx, hctx, bulk.Spec{Dir: bulk.Push, Peer: p.peer, Remote: p.handle, RemoteOffset: off,
		Local: local, Size: int64(len(b))})
}

// sendFile implements Sink.SendFile.
func (p *pushedSink) sendFile(ctx context.Context, f *os.File) (int64, error) {
	if err := p.checkUsable(); err != nil {
		return 0, err
	}
	m, err := mapFile(f, bulk.FileOptions{})
	if err != nil || p.isStream() {
		if err == nil {
			_ = m.Close()
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return 0, err
		}
		return io.Copy(p.writer(ctx), io.NewSectionReader(f, 0, 1<<62))
	}
	defer func() { _ = m.Close() }()
	w := p.writerOf()
	if err := w.begin(); err != nil {
		return 0, err
	}
	defer w.unlock()
	w.ctx = ctx
	if err := w.flushBounded(); err != nil {
		return 0, err
	}
	n := m.Len()
	switch room := p.handle.Len() - w.pos; {
	case n > room:
		return 0, fmt.Errorf("qs: sink: file of %d bytes exceeds the Sink's size of %d: %w",
			n, room, hg.ErrOverflow)
	case n == 0:
		return 0, nil
	}
	hctx := p.req.r.HG()
	local, err := m.Create(hctx, bulk.Options{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = local.Close() }()
	if err := bulk.Do(ctx, hctx, bulk.Spec{Dir: bulk.Push, Peer: p.peer, Remote: p.handle,
		RemoteOffset: w.pos, Local: local, Size: n}); err != nil {
		return 0, err
	}
	w.pos += n
	return n, nil
}

// flush makes p unusable after the handler has returned without an error. It blocks until all data
// has arrived or ctx is done. It returns the number of contiguous bytes that were written from the
// beginning, and the end of the last extent.
func (p *pushedSink) flush(ctx context.Context) (prefix, end int64, err error) {
	p.mu.Lock()
	p.ended = true // goroutines of the handler that are still running can no longer write
	w, all := p.w, slices.Clone(p.full)
	p.mu.Unlock()
	if w != nil {
		if err := w.lock(ctx); err != nil {
			return 0, 0, err
		}
		w.ctx = ctx
		err = w.flushBounded()
		all = append(all, extent{0, w.pos})
		w.unlock()
	}
	if all = mergeExtents(all); len(all) == 0 {
		return 0, 0, err
	}
	if all[0].from == 0 {
		prefix = all[0].to
	}
	return prefix, all[len(all)-1].to, err
}

// mergeExtents sorts the extents and merges those that overlap or are adjacent.
func mergeExtents(all []extent) []extent {
	slices.SortFunc(all, func(a, b extent) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	out := all[:0]
	for _, e := range all {
		if last := len(out) - 1; last >= 0 && e.from <= out[last].to {
			out[last].to = max(out[last].to, e.to)
			continue
		}
		out = append(out, e)
	}
	return out
}
