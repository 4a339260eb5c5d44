package hg

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A StreamSpec describes a stream of a call.
type StreamSpec struct {
	Up   bool // from the origin to the target; otherwise from the target to the origin
	Bulk bool // large data rather than messages: see the method NewStream of [na.Context.Upper]
}

// A Stream is one end of a unidirectional stream of bytes that belongs to a call.
// [Handle.SetStreams] declares it, and it opens when the handler begins. Before that no data of it
// moves; nor does that of a stream to the target until the handler reads it.
//
//	origin: SetStreams, Forward ── request ──► target: Request.Stream, in the handler
//	up:     Write, CloseWrite ───────────────► Next, Release … io.EOF
//	down:   Next, Release … io.EOF ◄────────── Write, CloseWrite
//
// The answer is independent of the streams: it may arrive before they have ended. A stream ends by
// CloseWrite or Fail, or as follows:
//
//   - Reset ends the stream at both sides, with its code.
//   - A call that is canceled, or ends without an answer of its handler, resets its streams at
//     once, with its own error.
//   - When the request has been answered and its handler has returned, streams to the target are
//     reset (ErrCanceled), and streams to the origin are closed: written data still arrives. If
//     the context of the handler had ended before, the latter are reset, too.
//   - With the session they end with ErrPeerLost.
//
// Methods may be called from any goroutine; only one at a time may read, or write. Only Wait,
// ReadContext and WriteContext block: the other methods return ErrAgain for an operation that is
// not possible yet. The memory is the library's.
type Stream struct {
	ctx  *Context
	spec StreamSpec
	end  *na.Stream

	mu     sync.Mutex // guards the fields below
	fn     func()
	waiter *loop.Waiter
	inWait bool  // a goroutine is in Wait, with waiter
	ready  bool  // ready to try again; set if waiter was nil at that time
	why    error // the error with which this side has ended the stream
}

// newStream makes one end of a stream with open, which calls NewStream or OpenStream of package na.
func (c *Context) newStream(spec StreamSpec, open func(step func(any) int) (*na.Stream, error)) (s *Stream, err error) {
	s = &Stream{ctx: c, spec: spec}
	s.end, err = open(s.onReady)
	return s, err
}

// onReady runs in Trigger when an operation that failed with ErrAgain may be tried again.
func (s *Stream) onReady(any) (ran int) {
	fn := s.wakeWaiter()
	if fn == nil {
		return 0
	}
	fn()
	return 1
}

// wakeWaiter makes Wait return, and returns the function of OnReady.
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

// Spec returns the description of s.
func (s *Stream) Spec() StreamSpec { return s.spec }

// OnReady sets a function that runs in Trigger when an operation that failed with ErrAgain may be
// tried again, or the stream has ended. It may run spuriously. A nil fn removes it.
func (s *Stream) OnReady(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fn = fn
}

// Write copies bytes from the front of b into the stream, and returns how many: at least one, or 0
// and ErrAgain. A stream to the target accepts none before the handler reads it. Other errors are
// the reason why the stream has ended, or match ErrInvalid after CloseWrite.
func (s *Stream) Write(b []byte) (n int, err error) {
	n, err = s.end.Write(b)
	return n, s.explainError(err)
}

// Reserve returns memory of the stream for 1 to n bytes, which the caller fills. It must be
// followed by Commit, also after Close: the memory is the caller's until then. The errors are those
// of Write, and ErrInvalid if n is less than 1.
func (s *Stream) Reserve(n int) ([]byte, error) {
	b, err := s.end.Reserve(n)
	return b, s.explainError(err)
}

// Commit sends the first n bytes of the memory that Reserve has returned. After an error pass 0.
func (s *Stream) Commit(n int) { s.end.Commit(n) }

// CloseWrite ends the writing: after the written data the receiver reads io.EOF.
func (s *Stream) CloseWrite() { s.end.CloseWrite() }

// Fail is CloseWrite with an error, which the receiver reads after the written data instead of
// io.EOF. The text is cut to 512 bytes.
func (s *Stream) Fail(code Code, text string) { s.end.Fail(code, text) }

// Next returns the next bytes to read, some or all of those that have arrived, without a copy; they
// are valid until Release. The error is ErrAgain if none have arrived, io.EOF after the last, or
// the reason why the stream has ended, after the data that had arrived. A Reset of this side drops
// that data.
func (s *Stream) Next() ([]byte, error) {
	b, err := s.end.Next()
	return b, s.explainError(err)
}

// Release ends the use of the first n bytes that Next has returned, and allows the sender to send
// as many more.
func (s *Stream) Release(n int) { s.end.Release(n) }

// Expect announces, at the receiver, that about n bytes will arrive: the window starts with that
// size, as far as there is room, instead of growing as data arrives. It is a hint, does not block,
// and does nothing once the stream has ended.
func (s *Stream) Expect(n int64) { s.end.Expect(n) }

// Reset ends the stream early: data that has not left, or was not read, is dropped, and the other
// side gets an error with code and text, which is cut to 512 bytes. It does nothing to a stream
// that has ended.
func (s *Stream) Reset(code Code, text string) { s.reset(na.WithText(code, text)) }

// reset implements Reset, and wakes goroutines that wait. If the other side has ended the stream,
// its error is kept.
func (s *Stream) reset(why error) {
	if ended := s.end.Reset(na.CodeOf(why), why.Error()); ended != nil {
		why = ended
	}
	s.noteEnd(why)
}

// Close ends the use of the stream by the program: after CloseWrite the written data is still sent,
// and a stream that has not ended is reset with ErrCanceled. The next Forward and Close of the
// handle, and the end of the request, close their streams.
func (s *Stream) Close() {
	s.OnReady(nil)
	s.closeWith(errStreamClosed)
}

// closeWith ends the use of the stream; its methods then return why, unless it was reset.
func (s *Stream) closeWith(why error) {
	s.end.Close()
	s.noteEnd(why)
}

// noteEnd records why as the reason why this side has ended the stream, and wakes goroutines that
// wait. Only the first call has an effect.
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

// explainError returns err, or the reason why this side has ended the stream if err is that of a
// closed stream.
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

// Moved returns how many bytes have left, or have arrived. A call whose streams have moved nothing
// may be retried safely.
func (s *Stream) Moved() int64 { return s.end.Moved() }

// Wait drives the context, or sleeps while another goroutine does, until an operation that failed
// with ErrAgain may be tried again, or the stream has ended. It may return spuriously. It returns
// the cause of ctx if that ends first, and an error that matches ErrClosed if the context is closed
// and drained. Only this goroutine is woken, as in [Handle.Call]. A second goroutine that calls
// Wait at the same time returns after a millisecond: it may be one that ends the stream while
// another still uses it.
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
	defer func() { // deferred: Wait runs other callbacks, which may panic
		s.mu.Lock()
		s.inWait = false
		s.mu.Unlock()
	}()
	err := w.Wait(ctx)
	if w.Ended() { // a later ErrAgain needs a new notification
		w.Reset()
		err = nil
	}
	return err
}

// ReadContext reads at least one byte into p, which must not be empty, and blocks as Wait does. The
// errors are those of Next and of Wait.
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

// WriteContext writes all of b, and blocks as Wait does. It returns how many bytes were written.
// The errors are those of Write and of Wait.
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

// SetStreams sets the streams of later calls of h, at most na.MaxStreams. The error matches
// ErrInvalid if there are more, ErrUnsupported for a one-way RPC, and ErrClosed if h is closed.
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

// Stream returns this side's end of a stream of the last call, by its index in SetStreams, from
// Forward until the next Forward or Close. It is nil if there is none.
func (h *Handle) Stream(i int) *Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i < 0 || i >= len(h.call.streams) {
		return nil
	}
	return h.call.streams[i]
}

// takeStreams implements hghook.TakeStreams.
func (h *Handle) takeStreams() (all []*Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase == callIdle {
		all, h.call.streams = h.call.streams, nil
	}
	return all
}

// setOnCall implements hghook.OnCall.
func (h *Handle) setOnCall(f func()) {
	h.mu.Lock()
	h.onCall = f
	h.mu.Unlock()
}

// setOnEnd implements hghook.OnEnd.
func (h *Handle) setOnEnd(f func()) {
	h.mu.Lock()
	h.onEnd = f
	h.mu.Unlock()
}

// makeStreamsLocked makes the streams of a call that begins.
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

// streamEndsLocked returns the streams of a call as package na has them.
func (k *call) streamEndsLocked() (all []*na.Stream) {
	for _, s := range k.streams {
		all = append(all, s.end)
	}
	return all
}

var (
	errStreamClosed = na.WithText(ErrInvalid, "the stream was closed")
	errNextCall     = na.WithText(ErrInvalid, "the handle was reused or closed")
	errCallCanceled = na.WithText(ErrCanceled, "the call was canceled")
	errReturned     = na.WithText(ErrCanceled, "the handler has returned")
)

// closeStreamsLocked closes the streams of the last call.
func (k *call) closeStreamsLocked() {
	for _, s := range k.streams {
		s.OnReady(nil) // no notification: the program has ended their use by Forward or Close
		s.closeWith(errNextCall)
	}
	k.streams = nil
}

// resetStreamsLocked resets the streams of a call that fails.
func (k *call) resetStreamsLocked(why error) {
	for _, s := range k.streams {
		s.reset(why)
	}
}

// failReasonLocked returns the error with which the streams of a call are reset that fails without
// an answer.
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

// Stream returns this side's end of a stream of the request, by its index in [Handle.SetStreams] at
// the origin, from the beginning of the handler until it has returned and the request was answered.
// It is nil if there is none.
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

// Streams returns the descriptions of the streams of the request, in order.
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

// openStreams opens the streams of a request whose handler is about to begin. If one cannot be
// opened, it resets the others.
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

// endStreamsLocked ends the streams of a request that has been answered and whose handler has
// returned.
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
