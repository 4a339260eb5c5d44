package hg

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A StreamSpec says what a stream of a call is.
type StreamSpec struct {
	Up   bool // from the origin to the target; else down, from the target to the origin
	Bulk bool // large data rather than messages: see the method NewStream of [na.Context.Upper]
}

// A Stream is one end of a direction of ordered bytes that belongs to a call: [Handle.SetStreams] declares it, and it begins with the
// handler. Until then nothing of it has moved; nor of one that goes up until the handler reads it.
//
//	origin: SetStreams, Forward ── request ──► target: Request.Stream, in the handler
//	up:     Write, CloseWrite ───────────────► Next, Release … io.EOF
//	down:   Next, Release … io.EOF ◄────────── Write, CloseWrite
//
// The answer is independent of the streams: it may come before they have ended. They end as follows, unless they have ended by themselves:
//
//   - Reset ends the stream at both sides, with its code.
//   - A call that is canceled, or ends without an answer of its handler, resets its streams at once, with what has ended it.
//   - When the request has been answered and its handler has returned, streams that go up are reset (ErrCanceled), and those that go down are
//     closed: what was written arrives. If the context of the handler had ended before, those are reset, too.
//   - With the session they end with ErrPeerLost.
//
// Methods may be called from any goroutine; one at a time writes, or reads. But for Wait, ReadContext and WriteContext none blocks: what
// cannot be done yet is ErrAgain. The memory is the library's.
type Stream struct {
	ctx  *Context
	spec StreamSpec
	end  *na.Stream

	mu     sync.Mutex // guards the fields below
	fn     func()
	waiter *loop.Waiter
	inWait bool  // a goroutine is in Wait, with waiter
	ready  bool  // it may be tried again, and waiter was nil when that was said
	why    error // why this side has ended it
}

// newStream makes one end of a stream with open, which is NewStream or OpenStream.
func (c *Context) newStream(spec StreamSpec, open func(step func(any) int) (*na.Stream, error)) (s *Stream, err error) {
	s = &Stream{ctx: c, spec: spec}
	s.end, err = open(s.onReady)
	return s, err
}

// onReady runs in Trigger when what was refused with ErrAgain may be tried again.
func (s *Stream) onReady(any) (ran int) {
	fn := s.wakeWaiter()
	if fn == nil {
		return 0
	}
	fn()
	return 1
}

// wakeWaiter has Wait return, and returns the callback.
func (s *Stream) wakeWaiter() (fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiter == nil {
		s.ready = true
	} else {
		s.waiter.End()
	}
	return s.fn
}

// Spec returns what s is.
func (s *Stream) Spec() StreamSpec { return s.spec }

// OnReady has fn run in Trigger when what was refused with ErrAgain may be tried again, or the stream has ended meanwhile. It may run
// without need. nil is nothing.
func (s *Stream) OnReady(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fn = fn
}

// Write copies as many bytes of b as go into the stream, and returns how many; at least one, or ErrAgain. Nothing goes into a stream that
// goes up before the handler reads it. Other errors say how the stream has ended, or match ErrInvalid after CloseWrite.
func (s *Stream) Write(b []byte) (n int, err error) {
	n, err = s.end.Write(b)
	return n, s.explainError(err)
}

// Reserve returns memory of the stream for at most n bytes, at least one, to be filled; then Commit follows in any case, also after Close: the
// memory is the caller's until then. The errors are those of Write.
func (s *Stream) Reserve(n int) ([]byte, error) {
	b, err := s.end.Reserve(n)
	return b, s.explainError(err)
}

// Commit has the first n bytes of what Reserve has returned leave; after an error 0.
func (s *Stream) Commit(n int) { s.end.Commit(n) }

// CloseWrite says that nothing more is written: the receiver reads io.EOF behind what was.
func (s *Stream) CloseWrite() { s.end.CloseWrite() }

// Fail is CloseWrite with an error: the receiver reads that behind what was written, instead of io.EOF. It gets 512 bytes of text.
func (s *Stream) Fail(code Code, text string) { s.end.Fail(code, text) }

// Next returns the bytes that can be read next, some of them or all, without a copy; they are valid until Release. The error is ErrAgain
// when none have come, io.EOF behind the last, or says how the stream has ended; these come behind what had come, but for a Reset of this
// side, which drops it.
func (s *Stream) Next() ([]byte, error) {
	b, err := s.end.Next()
	return b, s.explainError(err)
}

// Release ends the use of the first n bytes of what Next has returned: the sender may send as many more.
func (s *Stream) Release(n int) { s.end.Release(n) }

// Expect says, at the receiver, that about n bytes are about to come, which it has learned by other means: the window begins with so many,
// as far as there is room, instead of growing as they come. It promises nothing, does not block, and does nothing once the stream has
// ended.
func (s *Stream) Expect(n int64) { s.end.Expect(n) }

// Reset ends the stream before its end: what has not left, or was not read, is dropped, and the other side gets an error with code and text,
// of which it gets 512 bytes. It does nothing to a stream that has ended.
func (s *Stream) Reset(code Code, text string) { s.reset(na.WithText(code, text)) }

// reset is Reset, and wakes who waits. Of a stream that the other side has ended its reason stays.
func (s *Stream) reset(why error) {
	if ended := s.end.Reset(na.CodeOf(why), why.Error()); ended != nil {
		why = ended
	}
	s.noteEnd(why)
}

// Close ends the use of the stream by the program: after CloseWrite what was written still leaves, and one that has not come to its end is
// reset with ErrCanceled. The next Forward and Close of the handle, and the end of the request, do so, too.
func (s *Stream) Close() {
	s.OnReady(nil)
	s.closeWith(errStreamClosed)
}

// closeWith ends the use of the stream: why is what its methods return from now on, unless there was a reset.
func (s *Stream) closeWith(why error) {
	s.end.Close()
	s.noteEnd(why)
}

// noteEnd tells who waits why this side has ended the stream, the first time.
func (s *Stream) noteEnd(why error) {
	s.mu.Lock()
	first := s.why == nil
	if first {
		s.why = why
	}
	s.mu.Unlock()
	if !first {
		return
	}
	if fn := s.wakeWaiter(); fn != nil {
		_ = s.ctx.Post(fn)
	}
}

// explainError returns err, or why this side has ended the stream.
func (s *Stream) explainError(err error) error {
	if err == nil || na.CodeOf(err) != ErrInvalid {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return s.why
	}
	return err
}

// Begun reports whether the request of the stream has left.
func (s *Stream) Begun() bool { return s.end.Begun() }

// Moved returns how many bytes have left, or have come. A call whose streams have moved nothing may be made again without harm.
func (s *Stream) Moved() int64 { return s.end.Moved() }

// Wait drives the context, or sleeps while another goroutine does, until what was refused with ErrAgain may be tried again, or the stream has
// ended. It may return without need. The error is the cause of ctx if that ends first, or matches ErrClosed when the context is closed and
// drained. The goroutine is woken alone, as in [Handle.Call]. A second goroutine that waits meanwhile returns after a millisecond: it may be one
// that ends the stream while another is still in it.
func (s *Stream) Wait(ctx context.Context) error {
	s.mu.Lock()
	if s.inWait {
		s.mu.Unlock()
		return s.ctx.Sleep(ctx, time.Millisecond)
	}
	s.inWait = true
	w := s.waiter
	if w == nil {
		w = s.ctx.loop.NewYielding()
		if s.waiter = w; s.ready {
			w.End()
		}
	}
	s.mu.Unlock()
	defer func() { // deferred: it runs callbacks of others, which may panic
		s.mu.Lock()
		s.inWait = false
		s.mu.Unlock()
	}()
	err := w.Wait(ctx)
	if w.Ended() { // who is told ErrAgain from now on is told anew
		w.Reset()
		err = nil
	}
	return err
}

// ReadContext reads into p, which is not empty: at least one byte, for which it waits as Wait does. The errors are those of Next and of Wait.
func (s *Stream) ReadContext(ctx context.Context, p []byte) (n int, err error) {
	for {
		b, err := s.Next()
		switch {
		case err == nil:
			n = copy(p, b)
			s.Release(n)
			return n, nil
		case !isAgain(err):
			return 0, err
		}
		if err := s.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// WriteContext writes all of b, and waits as Wait does. It returns how many bytes were written. The errors are those of Write and of Wait.
func (s *Stream) WriteContext(ctx context.Context, b []byte) (n int, err error) {
	for n < len(b) {
		k, err := s.Write(b[n:])
		n += k
		if err == nil {
			continue
		}
		if !isAgain(err) {
			return n, err
		}
		if err := s.Wait(ctx); err != nil {
			return n, err
		}
	}
	return n, nil
}

func isAgain(err error) bool { return errors.Is(err, ErrAgain) }

// SetStreams has the calls of h from now on have streams. There are at most na.MaxStreams. The error matches ErrInvalid if there are more,
// ErrUnsupported for a one-way RPC, and ErrClosed when h has been closed.
func (h *Handle) SetStreams(specs ...StreamSpec) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return misuseError("forward", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case len(specs) > na.MaxStreams:
		return misuseError("forward", h.Name(), h.addr, ErrInvalid, "%d streams, a call has at most %d", len(specs), na.MaxStreams)
	case h.rpc.OneWay && len(specs) > 0:
		return misuseError("forward", h.Name(), h.addr, ErrUnsupported, "the RPC is one-way")
	}
	h.specs = append([]StreamSpec(nil), specs...)
	return nil
}

// Stream returns this end of a stream of the last call: by its index in SetStreams, from Forward until the next Forward or Close. It is
// nil if there is none.
func (h *Handle) Stream(i int) *Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i < 0 || i >= len(h.call.streams) {
		return nil
	}
	return h.call.streams[i]
}

// takeStreams is hghook.TakeStreams.
func (h *Handle) takeStreams() (all []*Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase == callIdle {
		all, h.call.streams = h.call.streams, nil
	}
	return all
}

// setOnCall is hghook.OnCall.
func (h *Handle) setOnCall(f func()) {
	h.mu.Lock()
	h.onCall = f
	h.mu.Unlock()
}

// setOnEnd is hghook.OnEnd.
func (h *Handle) setOnEnd(f func()) {
	h.mu.Lock()
	h.onEnd = f
	h.mu.Unlock()
}

// makeStreamsLocked makes the streams of a call that begins. Locked.
func (k *call) makeStreamsLocked() error {
	c := k.h.ctx
	for _, spec := range k.in.streams {
		s, err := c.newStream(spec, func(step func(any) int) (*na.Stream, error) {
			return c.nctx.Upper().NewStream(spec.Up, spec.Bulk, step, nil)
		})
		if err != nil {
			return err
		}
		k.streams = append(k.streams, s)
	}
	return nil
}

// streamEndsLocked returns the streams of a call for the layer below. Locked.
func (k *call) streamEndsLocked() (all []*na.Stream) {
	for _, s := range k.streams {
		all = append(all, s.end)
	}
	return all
}

var (
	errStreamClosed = na.WithText(ErrInvalid, "the stream was closed")
	errNextCall     = na.WithText(ErrInvalid, "the handle has made another call, or is closed")
	errCallCanceled = na.WithText(ErrCanceled, "the call was canceled")
	errReturned     = na.WithText(ErrCanceled, "the handler has returned")
)

// closeStreamsLocked ends the use of the streams of the last call. Locked.
func (k *call) closeStreamsLocked() {
	for _, s := range k.streams {
		s.OnReady(nil) // the program has ended their use itself
		s.closeWith(errNextCall)
	}
	k.streams = nil
}

// resetStreamsLocked ends the streams of a call that fails. Locked.
func (k *call) resetStreamsLocked(why error) {
	for _, s := range k.streams {
		s.reset(why)
	}
}

// failReasonLocked returns why a call fails that has not been answered, as its streams are told. Locked.
func (k *call) failReasonLocked() error {
	switch {
	case k.canceling && k.cancelCode == ErrTimeout:
		return errDeadlineOver
	case k.canceling && k.cancelCode == ErrClosed:
		return errClosed
	case k.canceling && k.cancelCode != ErrCanceled:
		return k.cancelCode
	case !k.canceling && k.opResult.Err != nil:
		return unwrapNA(k.opResult.Err)
	}
	return errCallCanceled
}

// Stream returns this end of a stream of the request, by its index in [Handle.SetStreams] at the origin, from when the handler begins until
// it has returned and the request was answered. It is nil if there is none.
func (r Request) Stream(i int) *Stream {
	s, ok := r.lockService()
	if !ok {
		return nil
	}
	defer s.mu.Unlock()
	if i < 0 || i >= len(s.streams) {
		return nil
	}
	return s.streams[i]
}

// Streams returns what the streams of the request are, in their order.
func (r Request) Streams() (specs []StreamSpec) {
	s, ok := r.lockService()
	if !ok {
		return nil
	}
	defer s.mu.Unlock()
	for i := range s.named.count {
		specs = append(specs, s.named.streamSpec(i))
	}
	return specs
}

// openStreams opens the streams of a request whose handler is about to begin.
func (s *service) openStreams() error {
	c := s.ctx
	for i := range s.named.count {
		spec := s.named.streamSpec(i)
		st, err := c.newStream(spec, func(step func(any) int) (*na.Stream, error) {
			return c.nctx.Upper().OpenStream(s.env, s.named.first+uint64(i), spec.Up, spec.Bulk, step, nil)
		})
		if err == nil {
			s.streams = append(s.streams, st)
			continue
		}
		switch na.CodeOf(err) {
		case na.ErrNoMemory:
			err = na.WithText(ErrExhausted, err.Error())
		case na.ErrDuplicate:
			err = na.WithText(na.ErrProtocol, err.Error())
		}
		for _, st := range s.streams {
			st.reset(err)
			st.closeWith(err)
		}
		s.streams = nil
		return err
	}
	return nil
}

// endStreamsLocked ends the streams of a request that has been answered and whose handler has returned. Locked.
func (s *service) endStreamsLocked() {
	var gone error
	switch g := s.handlerCtx; {
	case g != nil && g.ctx.Err() != nil:
		gone = context.Cause(g.ctx)
	case s.abandoned.Load():
		gone = errAbandoned
	case s.isLate():
		gone = errDeadlineOver
	}
	for _, st := range s.streams {
		switch {
		case gone != nil:
			st.reset(gone)
		case st.spec.Up:
			st.reset(errReturned)
		default:
			st.end.CloseWrite()
		}
		st.closeWith(errReturned)
	}
	s.streams = nil
}
