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

// A waiter lets one goroutine wait for an event. hghook.NewWaiter creates waiters.
type waiter interface {
	Wait(ctx context.Context) error
	End()
	Ended() bool
	Reset()
}

// callStreams holds the item streams of a call at its origin.
//
// Each attempt begins with beginAttempt, has usable streams after bindAttempt, and ends with
// endAttempt. If no data was transferred, another attempt may begin. If a response arrived, the
// streams remain open after the attempt, so that remaining items can be received. closeUse closes
// them.
type callStreams struct {
	up   *itemWriter // nil if the caller sends no items
	down *itemReader // nil if the caller receives no items

	sendWaiter, receiveWaiter waiter // waited on by the sending and the receiving goroutine, respectively

	ended atomic.Pointer[error] // error that Send returns after the call has completed; read without holding mu

	mu             sync.Mutex // guards the fields below
	attemptRunning bool       // an attempt has begun and not ended
	callEnded      bool       // endCall was called
	closed         bool       // closeUse was called
	spent          bool       // items were transferred or a response arrived, so no further attempt is possible
	streams        []*hg.Stream
	// resetReason is the error reported for streams that were reset because an attempt received its
	// response while RetryPolicy.ProgressTimeout was canceling it.
	resetReason error
}

// newCallStreams returns the callStreams for a call of m.
func newCallStreams(m *method, to *peer) *callStreams {
	hctx, most := to.n.contexts[to.i], to.n.maxItem()
	c := &callStreams{}
	for _, spec := range m.streams {
		w := hghook.NewWaiter(hctx)
		if spec.Up {
			c.sendWaiter = w
			c.up = &itemWriter{perAttempt: true, callEnd: c.sendError, hctx: hctx, maxItem: most,
				notifyDriver: hctx.NA().Upper().Loop().Rouse,
				wait:         func(ctx context.Context) error { return c.wait(ctx, w, true) }}
		} else {
			c.receiveWaiter, c.down = w, &itemReader{hctx: hctx, maxItem: most}
		}
	}
	return c
}

// maxItem returns the maximum size of an encoded item in bytes.
func (n *Node) maxItem() int64 {
	if most := n.cfg.HG.MaxOutput; most > 0 {
		return most
	}
	return 64 << 20
}

// beginAttempt records the start of an attempt. It fails if another attempt is in flight or no
// further attempt is possible.
func (c *callStreams) beginAttempt() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.attemptRunning:
		return hg.Errorf(ErrInvalid, "next called while an attempt of the stream is in flight")
	case c.spent:
		return hg.Errorf(ErrInvalid, "an earlier attempt transferred items; start a new stream")
	}
	c.attemptRunning = true
	return nil
}

// bindAttempt sets the streams used by the call to all, the streams of the current attempt.
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

// endAttempt records the end of an attempt that completed with err. It closes the attempt's
// streams, unless a response arrived or items were transferred.
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

// failAttempt records the end of an attempt that failed before bindAttempt was called.
func (c *callStreams) failAttempt() {
	c.mu.Lock()
	c.attemptRunning = false
	c.mu.Unlock()
}

// setResetReason sets the error that brokenReason returns for streams that were reset at the time
// at which the attempt's response arrived.
func (c *callStreams) setResetReason(why error) {
	c.mu.Lock()
	c.resetReason = why
	c.mu.Unlock()
}

// brokenReason returns the error to report to the caller if a stream of the call failed with err.
func (c *callStreams) brokenReason(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resetReason != nil && hg.CodeOf(err) == ErrCanceled {
		return c.resetReason
	}
	return err
}

// endCall records that the call completed with err and wakes waiting goroutines. They may use the
// result of the call, although its done channel is closed only afterward.
func (c *callStreams) endCall(err error) {
	send := io.EOF
	if isNodeClosed(err) {
		send = errNodeClosed
	}
	c.ended.Store(&send)
	c.mu.Lock()
	c.callEnded = true
	c.mu.Unlock()
	c.wake()
}

// sendError returns the error that Send must return if the call has completed, or nil.
func (c *callStreams) sendError() error {
	if err := c.ended.Load(); err != nil {
		return *err
	}
	return nil
}

var errNodeClosed = hg.Errorf(ErrClosed, "qs: node closed")

// isNodeClosed reports whether err means that the local node was closed, rather than the peer's.
func isNodeClosed(err error) bool {
	_, remote := hg.RemoteOf(err)
	return !remote && hg.CodeOf(err) == ErrClosed
}

// closeUse closes the streams and wakes waiting goroutines. The call must have completed.
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

// wake wakes the goroutines that are waiting to send and to receive.
func (c *callStreams) wake() {
	for _, w := range []waiter{c.sendWaiter, c.receiveWaiter} {
		if w != nil {
			w.End()
		}
	}
}

// stream returns the current stream in one direction, which is to the target if up is true, or nil
// if there is none. over reports whether the call has completed.
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

// wait waits for w and resets it. While the call is in flight, the call's goroutine drives the
// context. Afterward, the waiting goroutine does.
func (c *callStreams) wait(ctx context.Context, w waiter, up bool) error {
	if s, over := c.stream(up); over && s != nil {
		return s.Wait(ctx)
	}
	return awaitWaiter(ctx, w)
}

// awaitWaiter waits for w and resets it.
func awaitWaiter(ctx context.Context, w waiter) error {
	err := w.Wait(ctx)
	if w.Ended() {
		w.Reset()
		return nil
	}
	return err
}

// next waits for the next item of the call f and returns it. The item is valid until the next call
// to next. After the last item, next returns io.EOF if the call succeeded, and otherwise the call's
// error.
func (c *callStreams) next(f *futureCall) ([]byte, error) {
	o := f.o
	for {
		if f.ctx.Err() != nil {
			f.abandonAndWait()
			err := f.err
			if err == nil {
				err = brokenStream(o.m, o.Peer.Addr(), ErrCanceled)
			}
			return nil, endedBy(f.ctx, err)
		}
		if c.ended.Load() == nil { // once a chunk has been read, no further attempt can replace the stream
			if item := c.down.nextBuffered(); item != nil {
				return item, nil
			}
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
				continue // err belongs to the stream of an attempt that has ended
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
		default: // the stream failed; wait for the call, whose error is more specific
			err = awaitWaiter(f.ctx, c.receiveWaiter)
		}
		if err != nil && f.ctx.Err() == nil { // the local node is closed
			switch f.abandonAndWait(); {
			case isNodeClosed(err):
				err = &hg.Error{Op: "forward", RPC: o.m.name, Peer: o.Peer.Addr(), Fate: FateOf(f.err),
					Err: errNodeClosed}
			case f.err != nil:
				err = f.err
			default:
				err = brokenStream(o.m, o.Peer.Addr(), err)
			}
			return nil, err
		}
	}
}

// noStreamError returns the error for a receive from a call that succeeded without a stream. It is
// io.EOF if an interceptor returned the result without calling next. After Close, it matches
// ErrClosed.
func (c *callStreams) noStreamError(o *outgoingCall) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return brokenStream(o.m, o.Peer.Addr(), hg.Errorf(ErrClosed, "Receive called after Close"))
	}
	return io.EOF
}

// movedBytes returns the number of item bytes sent and received.
func (c *callStreams) movedBytes() (n int64) {
	if c.down != nil {
		n += c.down.movedBytes()
	}
	if c.up != nil {
		n += c.up.movedBytes()
	}
	return n
}

// progress returns a counter that increases with each byte transferred. It also increases with each
// call to progress while there are unread items, because the handler is then not stalled.
func (c *callStreams) progress() (n int64) {
	if c.down != nil {
		n += c.down.progress()
	}
	if c.up != nil {
		n += c.up.movedBytes()
	}
	return n
}

// flow returns a description of the streams, as reported by hg.Context.Calls.
func (c *callStreams) flow() *inspect.Flow {
	if c.down == nil {
		return c.up.flow()
	}
	return c.down.flow()
}
