package qs

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

// A waiter is where one goroutine waits for an end: that of hghook.NewWaiter.
type waiter interface {
	Wait(ctx context.Context) error
	End()
	Ended() bool
	Reset()
}

// callStreams are the streams of a call at its origin, where an attempt runs on a goroutine of its own.
//
//	attempt: begin ─► bind: the program may send and receive ─► take: the answer is there, the streams go on
//	            ▲────── nothing has moved: the next attempt ──────┘
//	program: close ends them
type callStreams struct {
	up   *itemWriter // nil if there is none
	down *itemReader

	sendWaiter, receiveWaiter waiter // of who sends, and who receives

	ended atomic.Pointer[error] // what Send returns when over, for those who must not take the lock

	mu             sync.Mutex // guards the fields below
	attemptRunning bool       // an attempt is under way
	callEnded      bool       // the call has ended
	closed         bool       // the program uses the streams no longer
	spent          bool       // something has moved in an attempt that has ended
	streams        []*hg.Stream
	resetReason    error // why the streams of an attempt were reset that was answered at the same time; nil if they were not
}

// newCallStreams returns the streams of a call of m to a peer.
func newCallStreams(m *method, to *peer) *callStreams {
	hctx, most := to.n.contexts[to.i], to.n.maxItem()
	c := &callStreams{}
	for _, spec := range m.streams {
		w := hghook.NewWaiter(hctx)
		if spec.Up {
			c.sendWaiter = w
			c.up = &itemWriter{perAttempt: true, callEnd: c.sendError, hctx: hctx, maxItem: most, notifyDriver: hctx.NA().Upper().Loop().Rouse,
				wait: func(ctx context.Context) error { return c.wait(ctx, w, true) }}
		} else {
			c.receiveWaiter, c.down = w, &itemReader{hctx: hctx, maxItem: most}
		}
	}
	return c
}

// maxItem is how many bytes an item may have.
func (n *Node) maxItem() int64 {
	if most := n.cfg.HG.MaxOutput; most > 0 {
		return most
	}
	return 64 << 20
}

// beginAttempt begins an attempt.
func (c *callStreams) beginAttempt() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.attemptRunning:
		return hg.Errorf(ErrInvalid, "an attempt of a stream is under way: make one after the other")
	case c.spent:
		return hg.Errorf(ErrInvalid, "items have come of an attempt before: call the stream again")
	}
	c.attemptRunning = true
	return nil
}

// bindAttempt gives the program the streams of an attempt whose call has begun.
func (c *callStreams) bindAttempt(all []*hg.Stream) {
	c.mu.Lock()
	c.streams = all
	c.mu.Unlock()
	for _, s := range all {
		if s.Spec().Up {
			s.OnReady(func() { c.up.onReady(); c.sendWaiter.End() })
			c.up.bind(s)
		} else {
			s.OnReady(func() { c.down.onBytes(); c.receiveWaiter.End() })
			c.down.bind(s)
		}
	}
	c.wake()
}

// endAttempt ends an attempt. Its streams go on if the handler has answered, or something has moved.
func (c *callStreams) endAttempt(all []*hg.Stream, err error) {
	moved := c.movedBytes() > 0
	c.mu.Lock()
	c.spent = c.spent || err == nil || moved
	c.attemptRunning = false
	keep := c.spent && !c.closed
	if !keep {
		c.streams = nil
	}
	c.mu.Unlock()
	if !keep {
		for _, s := range all {
			s.Close()
		}
	}
}

// failAttempt ends an attempt whose call has not begun.
func (c *callStreams) failAttempt() {
	c.mu.Lock()
	c.attemptRunning = false
	c.mu.Unlock()
}

// setResetReason says that an attempt was given up because of why just when its answer came: the call succeeds, and its streams were reset.
func (c *callStreams) setResetReason(why error) {
	c.mu.Lock()
	c.resetReason = why
	c.mu.Unlock()
}

// brokenReason returns why a stream is broken that returns err, for the caller of the call that it belongs to.
func (c *callStreams) brokenReason(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resetReason != nil && hg.CodeOf(err) == ErrCanceled {
		return c.resetReason
	}
	return err
}

// endCall says that the call has ended, with err.
func (c *callStreams) endCall(err error) {
	c.mu.Lock()
	c.callEnded = true
	c.mu.Unlock()
	send := io.EOF
	if isNodeClosed(err) {
		send = errNodeClosed
	}
	c.ended.Store(&send)
	c.wake()
}

// sendError is what Send returns because the call has ended; nil if it has not.
func (c *callStreams) sendError() error {
	if err := c.ended.Load(); err != nil {
		return *err
	}
	return nil
}

var errNodeClosed = hg.Errorf(ErrClosed, "qs: this node was closed, or has shut down")

// isNodeClosed reports whether err says that this node was closed, rather than a peer's.
func isNodeClosed(err error) bool {
	_, remote := hg.RemoteOf(err)
	return !remote && hg.CodeOf(err) == ErrClosed
}

// closeUse ends the use of the streams by the program. The call has ended, and those who wait return.
func (c *callStreams) closeUse() {
	c.mu.Lock()
	all := c.streams
	c.streams, c.closed = nil, true
	c.mu.Unlock()
	if c.up != nil {
		c.up.stop(io.EOF)
	}
	for _, s := range all {
		s.Close()
	}
	c.wake()
}

func (c *callStreams) wake() {
	for _, w := range []waiter{c.sendWaiter, c.receiveWaiter} {
		if w != nil {
			w.End()
		}
	}
}

// stream returns the stream that goes up, or the other; nil if there is none now.
func (c *callStreams) stream(up bool) (s *hg.Stream, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s = range c.streams {
		if s.Spec().Up == up {
			return s, c.callEnded
		}
	}
	return nil, c.callEnded
}

// wait waits until something has changed that w waits for. While the call is under way that drives its context; then who waits does.
func (c *callStreams) wait(ctx context.Context, w waiter, up bool) error {
	if s, over := c.stream(up); over && s != nil {
		return s.Wait(ctx)
	}
	return awaitWaiter(ctx, w)
}

// awaitWaiter waits for the end of w, which is used again.
func awaitWaiter(ctx context.Context, w waiter) error {
	err := w.Wait(ctx)
	if w.Ended() {
		w.Reset()
		return nil
	}
	return err
}

// next waits for the next item of the call f, and returns it: it is valid until the next call. The error is io.EOF behind the last of a call that
// has succeeded, or that of the call.
func (c *callStreams) next(f *futureCall) ([]byte, error) {
	o := f.o
	for {
		if f.ctx.Err() != nil {
			f.abandonAndWait()
			err := f.err
			if err == nil {
				err = brokenStream(o.m, o.Peer.Addr(), ErrCanceled)
			}
			return nil, hghook.EndedBy(f.ctx, err)
		}
		s, over := c.stream(false)
		if over && f.panic != nil {
			panic(f.panic)
		}
		var err error = hg.ErrAgain
		if s != nil {
			var item []byte
			if item, err = c.down.next(); err == nil {
				return item, nil
			}
			if now, _ := c.stream(false); now != s {
				continue // the attempt has ended
			}
		}
		switch again := errors.Is(err, hg.ErrAgain); {
		case over && !(again && s != nil):
			switch {
			case f.err != nil:
				err = f.err
			case again:
				err = c.noStreamError(o)
			case err != io.EOF:
				err = brokenStream(o.m, o.Peer.Addr(), c.brokenReason(err))
			}
			return nil, err
		case again:
			err = c.wait(f.ctx, c.receiveWaiter, false)
		default: // what becomes of the call counts more
			err = awaitWaiter(f.ctx, c.receiveWaiter)
		}
		if err != nil && f.ctx.Err() == nil { // the node is closed
			switch f.abandonAndWait(); {
			case isNodeClosed(err):
				err = &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: FateOf(f.err), Err: errNodeClosed}
			case f.err != nil:
				err = f.err
			default:
				err = brokenStream(o.m, o.Peer.Addr(), err)
			}
			return nil, err
		}
	}
}

// noStreamError returns how the items of a call end that has succeeded and has no stream: an interceptor has answered, and no item comes, or
// the program has closed the call before.
func (c *callStreams) noStreamError(o *outgoingCall) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return brokenStream(o.m, o.Peer.Addr(), hg.Errorf(ErrClosed, "Receive after Close"))
	}
	return io.EOF
}

// movedBytes returns how many bytes of items have come, or have left.
func (c *callStreams) movedBytes() (n int64) {
	if c.down != nil {
		n += c.down.movedBytes()
	}
	if c.up != nil {
		n += c.up.movedBytes()
	}
	return n
}

// progress grows with each byte that moves, and while there is something to take.
func (c *callStreams) progress() (n int64) {
	if c.down != nil {
		n += c.down.progress()
	}
	if c.up != nil {
		n += c.up.movedBytes()
	}
	return n
}

// flow describes the streams for hg.Context.Calls.
func (c *callStreams) flow() *inspect.Flow {
	if c.down == nil {
		return c.up.flow()
	}
	return c.down.flow()
}
