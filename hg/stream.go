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
	Bulk bool // large data rather than messages; see the method NewStream of [na.Context.Upper]
}

// A Stream is one end of a unidirectional byte stream that belongs to a call. It is declared by
// [Handle.SetStreams] and opens when the handler begins. Before that, none of its data is sent.
// Data of a stream to the target is not sent until the handler reads from the stream.
//
// The sender calls Write and, after the last byte, CloseWrite. The receiver calls Next and Release
// until Next returns io.EOF. The handler obtains its end of the stream from [Request.Stream], and
// the origin obtains its end from [Handle.Stream].
//
// The response is independent of the streams and may arrive before they have ended. A stream ends
// with CloseWrite or Fail, or as follows:
//
//   - Reset ends the stream on both sides, with the given code.
//   - A call that is canceled, or that completes without a response from its handler, resets its
//     streams at once with its own error.
//   - Once the request has been answered and its handler has returned, streams to the target are
//     reset (ErrCanceled) and streams to the origin are closed, so that written data still arrives.
//     If the handler's context was canceled earlier, streams to the origin are reset as well.
//   - When the session ends, its streams end with ErrPeerLost.
//
// Methods may be called from any goroutine, but at most one goroutine may read and one may write at
// a time. Only Wait, ReadContext, and WriteContext block. The other methods return ErrAgain for an
// operation that is not possible yet. The stream's memory belongs to the library.
type Stream struct {
	ctx  *Context
	spec StreamSpec
	end  *na.Stream

	mu     sync.Mutex // guards the fields below
	fn     func()
	waiter *loop.Waiter
	inWait bool  // reports whether a goroutine is in Wait, using waiter
	ready  bool  // reports whether an operation may be tried again; set if waiter was nil at the time
	why    error // error with which this side has ended the stream
}

// newStream creates one end of a stream. open must call NewStream or OpenStream of package na and
// return its results.
func (c *Context) newStream(spec StreamSpec, open func(step func(any) int) (*na.Stream, error)) (s *Stream, err error) {
	s = &Stream{ctx: c, spec: spec}
	s.end, err = open(s.onReady)
	return s, err
}

// onReady is called in Trigger when an operation that failed with ErrAgain may be tried again.
func (s *Stream) onReady(any) (ran int) {
	fn := s.wakeWaiter()
	if fn == nil {
		return 0
	}
	fn()
	return 1
}

// wakeWaiter wakes the goroutine in Wait, if any, and returns the function set by OnReady.
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

// OnReady sets a function to be called in Trigger when an operation that failed with ErrAgain may
// be tried again, or when the stream has ended. It may be called spuriously. A nil fn removes it.
func (s *Stream) OnReady(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fn = fn
}

// Write copies bytes from the beginning of b into the stream and returns the number of bytes
// copied, which is at least one. If none can be copied, it returns 0 and ErrAgain. A stream to the
// target accepts no bytes before the handler reads from it. Other errors are the reason why the
// stream has ended, or match ErrInvalid after CloseWrite.
func (s *Stream) Write(b []byte) (n int, err error) {
	n, err = s.end.Write(b)
	return n, s.explainError(err)
}

// Reserve returns memory of the stream for 1 to n bytes, which the caller fills. The caller must
// then call Commit, even after Close, and owns the memory until then. Errors are those documented
// for Write, and ErrInvalid if n is less than 1.
func (s *Stream) Reserve(n int) ([]byte, error) {
	b, err := s.end.Reserve(n)
	return b, s.explainError(err)
}

// Commit sends the first n bytes of the memory returned by Reserve. To send nothing, for example
// after an error, pass 0.
func (s *Stream) Commit(n int) { s.end.Commit(n) }

// CloseWrite closes the sending side. The receiver reads io.EOF after the written data.
func (s *Stream) CloseWrite() { s.end.CloseWrite() }

// Fail is like CloseWrite, but the receiver reads the given error instead of io.EOF after the
// written data. The text is truncated to 512 bytes.
func (s *Stream) Fail(code Code, text string) { s.end.Fail(code, text) }

// Next returns bytes that have arrived, without copying them. They are valid until they are
// released with Release. The error is ErrAgain if no bytes have arrived, and io.EOF after the last
// byte. If the stream has ended otherwise, the error is the reason, which Next returns after the
// data that had arrived. A Reset on this side discards that data.
func (s *Stream) Next() ([]byte, error) {
	b, err := s.end.Next()
	return b, s.explainError(err)
}

// Release releases the first n bytes returned by Next, which the caller must no longer use, and
// allows the sender to send n more.
func (s *Stream) Release(n int) { s.end.Release(n) }

// Expect announces that the receiver, which calls it, expects about n bytes. The window then starts
// at that size, if there is enough memory, instead of growing as data arrives. Expect does not
// block, and does nothing once the stream has ended.
func (s *Stream) Expect(n int64) { s.end.Expect(n) }

// Reset ends the stream early. Data that has not been sent or read is discarded, and the other side
// receives an error with code and text. The text is truncated to 512 bytes. Reset does nothing to a
// stream that has ended.
func (s *Stream) Reset(code Code, text string) { s.reset(na.WithText(code, text)) }

// reset implements Reset and wakes waiting goroutines. If the other side has already ended the
// stream, its error is kept.
func (s *Stream) reset(why error) {
	if ended := s.end.Reset(na.CodeOf(why), why.Error()); ended != nil {
		why = ended
	}
	s.noteEnd(why)
}

// Close closes this end of the stream. Data written before CloseWrite is still sent. A stream that
// has not ended is reset with ErrCanceled. Streams are closed automatically by the next Forward or
// Close of the handle, or when the request ends.
func (s *Stream) Close() {
	s.OnReady(nil)
	s.closeWith(errStreamClosed)
}

// closeWith closes the stream. If the stream has not ended, its methods then return why.
func (s *Stream) closeWith(why error) {
	s.end.Close()
	s.noteEnd(why)
}

// noteEnd records that this side has ended the stream because of why, and wakes waiting goroutines.
// It does nothing if an end has already been recorded.
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

// explainError returns err. If err means that the stream is closed, explainError returns the reason
// why this side has ended the stream.
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

// Begun reports whether the request to which the stream belongs has been sent.
func (s *Stream) Begun() bool { return s.end.Begun() }

// Moved returns the number of bytes that have been sent or received. A call whose streams have
// moved no bytes may be retried safely.
func (s *Stream) Moved() int64 { return s.end.Moved() }

// Wait blocks until an operation that failed with ErrAgain may be tried again, or the stream has
// ended. While it waits, it drives the context, or sleeps if another goroutine does. It may return
// spuriously. It returns the cause of ctx if ctx is done first, and an error that matches ErrClosed
// if the context is closed and drained. Only this goroutine is woken, as in [Handle.Call]. If
// another goroutine is already in Wait, Wait returns after a millisecond. This allows a goroutine
// to end the stream while another one still uses it.
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
	defer func() { // deferred, because Wait runs other callbacks, which may panic
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

// ReadContext reads at least one byte into p, which must not be empty. It blocks as Wait does.
// Errors are those documented for Next and Wait.
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

// WriteContext writes all of b and returns the number of bytes written. It blocks as Wait does.
// Errors are those documented for Write and Wait.
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

// SetStreams sets the streams of later calls of h. A call may have at most na.MaxStreams. The error
// matches ErrInvalid if there are more, ErrUnsupported for a one-way RPC, and ErrClosed if h is
// closed.
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

// Stream returns this side's end of the i'th stream of the most recent call, in the order of
// SetStreams. It may be used from Forward until the next Forward or Close. Stream returns nil if
// there is no such stream.
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

// makeStreamsLocked creates the streams of a call that is about to begin. The caller must hold
// k.h.mu.
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

// streamEndsLocked returns the underlying streams of package na. The caller must hold k.h.mu.
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

// closeStreamsLocked closes the streams of the most recent call. The caller must hold k.h.mu.
func (k *call) closeStreamsLocked() {
	for _, s := range k.streams {
		s.OnReady(nil) // no notification: the program has ended their use by Forward or Close
		s.closeWith(errNextCall)
	}
	k.streams = nil
}

// resetStreamsLocked resets the streams of a failed call with the error why. The caller must hold
// k.h.mu.
func (k *call) resetStreamsLocked(why error) {
	for _, s := range k.streams {
		s.reset(why)
	}
}

// failReasonLocked returns the error with which the streams of a call that fails without a response
// are reset. The caller must hold k.h.mu.
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

// Stream returns this side's end of the request's i'th stream, in the order of [Handle.SetStreams]
// at the origin. It may be used from the beginning of the handler until the handler has returned
// and the request has been answered. Stream returns nil if there is no such stream.
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

// Streams returns the descriptions of the request's streams, in order.
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

// openStreams opens the streams of a request whose handler is about to begin. If one of them cannot
// be opened, it resets the others.
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
// returned. The caller must hold s.mu.
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
