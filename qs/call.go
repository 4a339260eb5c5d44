package qs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Call is what interceptors see of a call, and what a handler gets by CallFrom. Before the request leaves, a client's may
// change Peer and Metadata.
type Call struct {
	Method           string
	Idempotent       bool        // by the method's Idempotent
	Peer             Peer        // where it goes; at the target, where it comes from
	Metadata         hg.Metadata // beside the input: what WithMetadata has put into the ctx of Call; an interceptor sets it here
	In, Out          any         // pointers to the input and the output; at the target In is decoded before the first interceptor runs
	ResponseMetadata hg.Metadata // beside the output: a handler sets it, a client has it after next
	Attempt          int         // from 1, of Retry
	BytesMoved       int64       // bytes that have been moved from and to what the input lends, in this attempt: after next

	in              hg.Request // at the target
	ctl             *attemptControl
	retryDepth      int           // number of Retry interceptors that the call has passed; only the innermost repeats it
	progressTimeout time.Duration // RetryPolicy.ProgressTimeout: an attempt that makes no progress for this time is canceled
	withdrawTimeout time.Duration // RetryPolicy.WithdrawTimeout: how long that attempt waits for its request to be withdrawn
	lends           bool          // the method has Sources or Sinks, or answers a stream
}

// Caller returns, at the server, the sender of the request, as CallerFrom does in a handler: its
// address and, with TLS, its verified certificate and Name. Call it before the handler, or the
// interceptor, returns. At the client it is zero.
func (c *Call) Caller() Caller { return c.in.Caller() }

// CallFrom returns the request that the ctx of a handler, or one made of it, belongs to; nil for
// any other ctx, also that of Config.Authorize, which is given its Call. Call it before the handler
// returns, from one goroutine at a time. Most handlers need CallerFrom and Metadata only; a Call
// also has the Peer, for calls back, and ResponseMetadata.
func CallFrom(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Draining returns, for the ctx of a handler or one made of it, a context that ends when the node of that handler begins to drain: by
// Serve, whose context has ended, by Shutdown or by Close. A handler that would go on for long, as that of a subscription, looks at it and returns,
// so that it is not waited for until Config.ShutdownTimeout is over: its own ctx ends only then. For any other ctx it returns one that never
// ends. It may be used after the handler has returned.
//
//	select {
//	case item := <-news:
//		err = send(item)
//	case <-qs.Draining(ctx).Done():
//		return qs.Errorf(qs.ErrDraining, "this server stops; subscribe at another")
//	case <-ctx.Done():
//		return context.Cause(ctx)
//	}
//
// A handler that waits in send, or for a Source or a Sink, does not look. A server interceptor ends that wait: it gives next a context
// that ends with Draining(ctx), by context.AfterFunc. In the simulator hg.Context.Wait waits for Err.
func Draining(ctx context.Context) context.Context {
	if life, ok := ctx.Value(drainKey{}).(context.Context); ok {
		return life
	}
	return context.Background()
}

// CallerFrom returns in a handler the sender of the request: its address and, with TLS, its
// verified certificate and Name. It is the zero Caller for a ctx that is not a handler's. Call it
// before the handler returns.
func CallerFrom(ctx context.Context) Caller {
	c := CallFrom(ctx)
	if c == nil {
		return Caller{}
	}
	return c.Caller()
}

type (
	callKey struct{}
	// drainKey is where the context of a handler keeps what Draining returns.
	drainKey struct{}
	metaKey  struct{}
)

// WithMetadata returns a context whose calls carry a value under name, which is 1 to 63 of a-z, 0-9, '.' and '-'. Names that
// begin with "qs-" are the library's; of these a program may give hg.KeyMeta only. A handler reads it by Metadata; it is not passed on by the target. A call has at most
// 16 names and, with 3 bytes for each, 8 KiB of them and their values: one with more, or with a bad name, does not run and fails with
// hg.ErrOverflow or ErrInvalid.
func WithMetadata(ctx context.Context, name, value string) context.Context {
	was, _ := ctx.Value(metaKey{}).(metaFromContext)
	if was.err != nil {
		return ctx
	}
	m, err := was.m.With(name, value)
	return context.WithValue(ctx, metaKey{}, metaFromContext{m, err})
}

// Metadata returns in a handler the value that the caller has given by WithMetadata under name; false if there is none, and for a
// ctx that is not a handler's. An interceptor of the server may have changed it. It is asked before the handler returns. Names that begin
// with "qs-" are the library's, and not there.
func Metadata(ctx context.Context, name string) (value string, ok bool) {
	c := CallFrom(ctx)
	if c == nil {
		return "", false
	}
	return c.Metadata.Get(name)
}

type metaFromContext struct {
	m   hg.Metadata
	err error
}

// A attemptControl knows what is under way of a call, and what became of what has ended. Whatever ends a call from outside says so
// here, and each attempt asks here before it begins; hghook.Forbid closes the moment between that and its Forward. So no end is lost.
//
//	run ─► scope ─ interceptor ─ next ─► scope ─ interceptor ─ next ─► scope ─► attempt
//	         ▲                             ▲                             │ its fate
//	         └─────────────────────────────┴─────────────────────────────┘
type attemptControl struct {
	mu            sync.Mutex           // guards the fields below
	stopErr       error                // no attempt begins any more
	pauses        int                  // or while so many ask targets to give the request back
	lastNumber    int                  // number of the last attempt
	attempts      *attempt             // those under way
	first         attempt              // in the place of one that is allocated
	lastAddr      hg.Addr              // of the last attempt
	triedAddrs    map[hg.Addr]struct{} // of those before; nil while all went to one
	streamedBytes int64                // bytes of a Reader or a Writer that were moved
	ioLeft        bool                 // a Read or a Write of an attempt is still running
	top           callScope
}

// A callScope is one call of next, or the whole call. Its error says what became of all attempts in it, whatever the interceptors
// have made of theirs.
type callScope struct {
	parent       *callScope
	fate         hg.Fate       // of the worst attempt,
	fateAttempt  int           // and its number
	attemptCount int           // attempts
	openAttempts int           // of them under way
	closed       bool          // none begins any more
	idle         chan struct{} // closed when none is under way; made by who waits

	answers int  // calls of next by the interceptor in it that have succeeded; outgoing.taking guards this
	settled bool // and this: the interceptor has returned, and what it was given does not change any more
}

// A nestedScope is what one call of next makes: a scope, and the Call that the interceptor, or the attempt, in it has.
type nestedScope struct {
	callScope
	call          Call
	answersBefore int // answers of the scope around, when it began
}

// An attempt is one way of a request to a target.
type attempt struct {
	scope  *callScope // nil when it has ended
	number int
	h      *hg.Handle // while the call of it may be under way
	loans  *loanSet
	next   *attempt

	stalled    bool // it was given up
	stallTimer *na.Op
	lastMoved  int64 // at the last look
}

var errNextLate = na.WithText(ErrInvalid, "the call, or the interceptor, that next belongs to has ended")

// recordAddr says where the next attempt of a call goes.
func (c *Call) recordAddr(addr hg.Addr) {
	k := c.ctl
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.lastAddr.IsZero() && k.lastAddr != addr {
		if k.triedAddrs == nil {
			k.triedAddrs = map[hg.Addr]struct{}{}
		}
		k.triedAddrs[k.lastAddr] = struct{}{}
	}
	k.lastAddr = addr
}

// hasTriedAddr reports whether an attempt of a call went to an address.
func (c *Call) hasTriedAddr(addr hg.Addr) bool {
	if c == nil {
		return false
	}
	c.ctl.mu.Lock()
	defer c.ctl.mu.Unlock()
	_, been := c.ctl.triedAddrs[addr]
	return been || c.ctl.lastAddr == addr
}

// spentReason says why another attempt would not get all that the call lends; "" if it would.
func (c *attemptControl) spentReason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ioLeft:
		return "a Read or a Write of an attempt before is still running: call the method again with a new Reader or Writer"
	case c.streamedBytes > 0:
		return fmt.Sprintf("an attempt before has moved %d bytes of a Reader, a Writer or a stream: call the method again with new ones", c.streamedBytes)
	}
	return ""
}

// addSpent counts bytes of a Reader, a Writer or a stream that were moved; left is whether a Read or a Write is still running.
func (c *attemptControl) addSpent(n int64, left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streamedBytes += n
	c.ioLeft = c.ioLeft || left
}

// beginErrLocked says why nothing begins in s. Locked.
func (c *attemptControl) beginErrLocked(s *callScope) error {
	for ; s != nil; s = s.parent {
		if s.closed {
			return errNextLate
		}
	}
	if c.stopErr == nil && c.pauses > 0 {
		return hg.ErrCanceled
	}
	return c.stopErr
}

// addAttempt begins an attempt in s, which Retry calls number n.
func (c *attemptControl) addAttempt(s *callScope, n int) (*attempt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.beginErrLocked(s); err != nil {
		return nil, err
	}
	a := &c.first
	if a.scope != nil {
		a = &attempt{}
	}
	c.lastNumber = max(c.lastNumber+1, n)
	*a = attempt{scope: s, number: c.lastNumber, next: c.attempts}
	c.attempts = a
	for ; s != nil; s = s.parent {
		s.attemptCount++
		s.openAttempts++
	}
	return a, nil
}

// beginForward says that h is about to be forwarded for a.
func (c *attemptControl) beginForward(a *attempt, h *hg.Handle, stall, withdraw time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.beginErrLocked(a.scope); err != nil {
		return err
	}
	a.h = h
	if stall > 0 {
		c.checkStallLocked(a, stall, withdraw)
	}
	return nil
}

// recordOutcome says what became of the request of a. Nobody ends it from outside any more.
func (c *attemptControl) recordOutcome(a *attempt, fate hg.Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.h = nil
	if a.stallTimer != nil {
		a.stallTimer.Cancel()
		a.stallTimer = nil
	}
	for s := a.scope; s != nil; s = s.parent {
		if fate == Ran && s.fate != Ran || fate == MaybeRan && s.fate == NotRun {
			s.fate, s.fateAttempt = fate, a.number
		}
	}
}

// removeAttempt is the end of a. It reports whether somebody has waited for that.
func (c *attemptControl) removeAttempt(a *attempt) (awaited bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.attempts
	for *at != a {
		at = &(*at).next
	}
	*at = a.next
	for s := a.scope; s != nil; s = s.parent {
		if s.openAttempts--; s.openAttempts == 0 && s.idle != nil {
			close(s.idle)
			s.idle, awaited = nil, true
		}
	}
	a.scope = nil
	return awaited
}

// closeScope has no attempt begin in s any more, and abandons those under way. The channel, if it is not nil, is closed when there are
// none.
func (c *attemptControl) closeScope(s *callScope) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.closed = true
	if s.openAttempts == 0 {
		return nil
	}
	for a := c.attempts; a != nil; a = a.next {
		if a.isWithin(s) {
			a.endCallLocked((*hg.Handle).Abandon)
		}
	}
	s.idle = make(chan struct{})
	return s.idle
}

func (a *attempt) isWithin(of *callScope) bool {
	for s := a.scope; s != nil; s = s.parent {
		if s == of {
			return true
		}
	}
	return false
}

// endCallLocked ends the call of a, with f if it has begun. It reports whether f was called. Locked.
func (a *attempt) endCallLocked(f func(*hg.Handle)) bool {
	if a.h == nil || hghook.Forbid(a.h) {
		return false
	}
	f(a.h)
	return true
}

// stopAttempts has no attempt begin any more, and calls f for each under way. It reports whether there was one.
func (c *attemptControl) stopAttempts(f func(*hg.Handle)) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopErr = hg.ErrCanceled
	return c.endAttemptsLocked(f)
}

// endAttemptsLocked calls f for each attempt under way, and has none begin that is about to. It reports whether there was one. Locked.
func (c *attemptControl) endAttemptsLocked(f func(*hg.Handle)) (any bool) {
	for a := c.attempts; a != nil; a = a.next {
		any = a.endCallLocked(f) || any
	}
	return any
}

// pauseAttempts is stop until resume.
func (c *attemptControl) pauseAttempts(f func(*hg.Handle)) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses++
	return c.endAttemptsLocked(f)
}

func (c *attemptControl) resumeAttempts() {
	c.mu.Lock()
	c.pauses--
	c.mu.Unlock()
}

// mayBeAnswered reports whether a target may still answer.
func (c *attemptControl) mayBeAnswered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for a := c.attempts; a != nil; a = a.next {
		if a.h != nil && hghook.IsOutstanding(a.h) {
			return true
		}
	}
	return false
}

// isStopped reports whether the call was taken back.
func (c *attemptControl) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopErr != nil || c.pauses > 0
}

// hasStalled reports whether a was given up because nothing came, and for no other reason.
func (c *attemptControl) hasStalled(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return a.stalled && c.beginErrLocked(a.scope) == nil
}

// withFate returns err as the error of s, which was given ctx: with the worst fate of its attempts, or that of err if it is worse.
func (c *attemptControl) withFate(ctx context.Context, s *callScope, method string, err error) error {
	c.mu.Lock()
	fate, which := s.fate, s.fateAttempt
	if s.attemptCount < 2 {
		which = 0
	}
	c.mu.Unlock()
	worst := FateOf(errors.Join(err, &hg.Error{Fate: fate}))
	if FateOf(err) == worst && ctx.Err() == nil {
		return err
	}
	if last, ok := err.(*exhaustedError); ok {
		return &exhaustedError{c.withFate(ctx, s, method, last.err), last.note}
	}
	e, ok := err.(*hg.Error)
	if !ok {
		e = &hg.Error{Op: "forward", RPC: method, Fate: FateOf(err), Err: err}
	}
	if e.Fate != worst {
		told := *e
		told.Fate, told.Attempt = worst, which
		e = &told
	}
	return hghook.EndedBy(ctx, e)
}

// checkStallLocked gives a up if nothing has been moved when stall has passed, and else looks again. Locked.
func (c *attemptControl) checkStallLocked(a *attempt, stall, withdraw time.Duration) {
	h := a.h
	nctx := h.HG().NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.Err != nil || a.stallTimer != op {
			return
		}
		a.stallTimer = nil
		if a.loans != nil {
			if moved := a.loans.progress(); moved > a.lastMoved {
				a.lastMoved = moved
				c.checkStallLocked(a, stall, withdraw)
				return
			}
		}
		a.stalled = true
		a.endCallLocked(func(h *hg.Handle) {
			if withdraw <= 0 {
				h.Abandon()
				return
			}
			_ = h.Withdraw(withdraw, func(_ *hg.Handle, r hg.WithdrawResult) {
				c.mu.Lock()
				defer c.mu.Unlock()
				if r != hg.Withdrawn && a.h == h && a.stalled {
					h.Abandon()
				}
			})
		})
	})
	if nctx.Timer(op, stall) == nil {
		a.stallTimer = op
	}
}
