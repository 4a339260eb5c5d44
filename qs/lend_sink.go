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
)

// A Sink is room that a caller lends for the time of its call, in a field of the input. The handler
// writes into it. Both sides use the same type. The zero Sink has no room.
//
//   - The caller makes it with Buffer, FileBuffer or Writer; the handler fills it with Writer,
//     WriteAt or SendFile.
//   - When Call has returned, whatever the error, nothing writes to the caller's memory or file any
//     more, and no Write to its writer begins.
//   - After an error the contents of a Buffer are undefined, and what a Writer has written is a
//     prefix of what the handler wrote.
//   - A Sink serves one attempt of one call at a time: a second one fails with ErrInvalid. Filled
//     is that of the last attempt.
type Sink struct{ s *sinkState }

// A sinkState is the state of a Sink, on either side.
type sinkState struct {
	// At the caller one of segs, file and into is set.
	segs [][]byte
	file *os.File // extended to size
	size int64
	into io.Writer
	used streamUse // an attempt uses the Sink

	fileSink *sinkState // if into stands in for a file that cannot be mapped: the Sink of that file

	filled atomic.Int64

	lent    *lentTicket // in the input of an attempt: its ticket
	handler *pushedSink // at the handler
}

// Buffer lends memory to be filled. Do not use it until the call has returned; Filled then says how
// much of it has arrived.
func Buffer(segs ...[]byte) Sink { return Sink{&sinkState{segs: nonNil(segs)}} }

// FileBuffer lends the first size bytes of a regular file, which must be open for reading and
// writing. The offset of f does not matter.
//
//   - The file is mapped, without a copy, if its system and file system can do that. Otherwise it
//     is written as a stream, and the handler can only use Writer.
//   - The file is extended to size bytes. When the call has succeeded, it is truncated behind the
//     last byte that was written. Gaps that the handler left keep their content, which is zeros in
//     a new file.
//   - If another process truncates the file during the call, the call fails, or the content reads
//     as zeros.
func FileBuffer(f *os.File, size int64) Sink { return Sink{&sinkState{file: f, size: size}} }

// Writer lends w, for data of any length.
//
//   - What the handler writes is written to w by a goroutine of the caller's process, in pieces of
//     up to 256 KiB, with up to some MiB on their way. Call returns when all has been written,
//     though the handler has returned before.
//   - An error of w fails the call, as that of Reader does. A call that has written bytes is not
//     repeated by Retry.
//   - A Write still running when the call ends has 50 ms, since one that is cut short may break a
//     TLS connection. Then it is interrupted by SetWriteDeadline if w has that (the deadline is
//     cleared afterwards). Otherwise it may still be running when Call returns.
func Writer(w io.Writer) Sink { return Sink{&sinkState{into: w}} }

// Len returns the room in bytes; -1 for Writer, which has no limit.
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

// Filled is for the caller. If the handler found too little room it is 0, and the error of the call
// is hg.ErrRemote, unless the handler gave it a code. It returns the number of bytes from the beginning that have arrived
// without gaps; handlers that use WriteAt may leave gaps. After an error it is valid only for
// Writer.
func (s Sink) Filled() int64 {
	if s.s == nil {
		return 0
	}
	return s.s.filled.Load()
}

// Writer returns the writer of s for its handler; it is an io.ReaderFrom too. All calls of Writer
// return the same stream, for one goroutine at a time. Writer panics if ctx is nil.
//
//   - Writes are buffered: several chunks of 1 MiB are in flight. For a Writer of the caller up to
//     1 MiB waits here, and the handler may return before it was sent.
//   - A Write blocks until ctx is done. Earlier Writes, and the flush after the handler has
//     returned without an error, continue until the request ends, the flush also until the context
//     that an interceptor gave to next is done. If the flush fails, so does the call.
//   - If the writer of the caller fails, a later Write returns its error. If the handler has
//     returned before, only the caller gets it.
//   - A goroutine that writes after the handler has returned gets ErrClosed; what it wrote before
//     is flushed.
//   - Errors match hg.ErrOverflow (no room), ErrClosed (the handler has returned), ErrTimeout or
//     ErrCanceled (ctx), and hg.ErrUnsupported (at the caller).
func (s Sink) Writer(ctx context.Context) io.Writer {
	if ctx == nil {
		panic("qs: Sink.Writer with a nil context")
	}
	if s.s == nil {
		return failWriter{errNoRoom}
	}
	return s.s.handler.writer(ctx)
}

// WriteAt writes p at off, for the handler of s. It blocks until p has arrived, or the handler's
// context is done. Errors match hg.ErrOverflow (no room), ErrClosed (the handler has returned), and
// hg.ErrUnsupported (for Writer, and at the caller).
func (s Sink) WriteAt(p []byte, off int64) (int, error) {
	if s.s == nil {
		return 0, errNoRoom
	}
	return s.s.handler.writeAt(p, off)
}

// SendFile writes the regular file f from its beginning to its end, as Writer would, straight from
// the page cache if f can be mapped. It returns the number of bytes. Its errors are those of
// Writer.
func (s Sink) SendFile(ctx context.Context, f *os.File) (int64, error) {
	if s.s == nil {
		if info, err := f.Stat(); err == nil && info.Size() == 0 {
			return 0, nil
		}
		return 0, errNoRoom
	}
	return s.s.handler.sendFile(ctx, f)
}

var errNoRoom = fmt.Errorf("qs: the Sink is empty: the caller has to lend room with Buffer, FileBuffer or Writer: %w",
	hg.ErrOverflow)

// IsZero reports whether s is the zero Sink. It is for codecs that leave empty fields out.
func (s Sink) IsZero() bool { return s.s == nil }

// MarshalBinary is for codecs. The error matches hg.ErrUnsupported outside of the input of a call.
func (s Sink) MarshalBinary() ([]byte, error) {
	switch {
	case s.s == nil:
		return []byte{}, nil
	case s.s.lent == nil:
		return nil, errNotInCall("Sink")
	}
	return s.s.lent.encoded(), nil
}

// UnmarshalBinary is for codecs. The error matches ErrProtocol.
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

// A failWriter fails each Write with err.
type failWriter struct{ err error }

// Write implements io.Writer.
func (w failWriter) Write([]byte) (int, error) { return 0, w.err }

// A pushedSink is a Sink at its handler.
type pushedSink struct {
	borrowedMem
	w    *pushWriter // what Writer returns; nil before
	full []extent    // what WriteAt has written, in order of the calls
}

// An extent is a range of bytes.
type extent struct{ from, to int64 }

// checkUsable returns why p cannot be used. p is nil at the caller.
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

// writerOf returns the pushWriter of p, and makes it the first time.
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
		return 0, fmt.Errorf("qs: sink: the caller has lent a Writer, which is a stream: use Sink.Writer: %w",
			hg.ErrUnsupported)
	case off < 0 || int64(len(b)) > p.handle.Len()-off:
		return 0, fmt.Errorf("qs: sink: %d bytes at %d do not fit into the %d bytes of the Sink: %w",
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

// push moves b to off, and waits for its arrival.
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
		return 0, fmt.Errorf("qs: sink: the file has %d bytes, but the caller has lent room for %d: lend a larger FileBuffer, or a Writer: %w",
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

// flush ends the use of p after the handler has returned without an error, and waits until
// everything has arrived, or ctx is done. It returns the number of bytes from the beginning that
// were written without gaps, and the end of the last byte.
func (p *pushedSink) flush(ctx context.Context) (prefix, end int64, err error) {
	p.mu.Lock()
	p.ended = true // goroutines that the handler has left behind write nothing any more
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

// mergeExtents sorts extents, and merges those that touch.
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
