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

// A Call describes one call to interceptors, and one request to its handler (CallFrom). A client's
// interceptor may change Peer and Metadata before the request leaves.
type Call struct {
	Method     string
	Idempotent bool // the method is declared Idempotent
	Peer       Peer // the destination; at the server, the origin
	// Metadata is sent with the input. It is what WithMetadata has put into the ctx of Call. A
	// client's interceptor may set it, or use WithMetadata for the ctx that it gives to next.
	Metadata hg.Metadata
	// In and Out point to the input and the output. At the server In is decoded before the first
	// interceptor runs.
	In, Out any
	// ResponseMetadata is sent with the output. A handler sets it; a client has it after next.
	ResponseMetadata hg.Metadata
	Attempt          int // number of the attempt, from 1; counted by Retry
	// BytesMoved is the number of bytes moved from and to what the input lends, in this attempt. It
	// is valid after next.
	BytesMoved int64

	in  hg.Request // the request; zero at the client
	ctl *attemptControl
	// retryDepth is the number of Retry interceptors that the call has passed; only the innermost
	// repeats it.
	retryDepth int
	// progressTimeout is RetryPolicy.ProgressTimeout: an attempt without progress for this time is
	// canceled.
	progressTimeout time.Duration
	// withdrawTimeout is RetryPolicy.WithdrawTimeout: how long a stalled attempt waits for its
	// withdrawal.
	withdrawTimeout time.Duration
	lends           bool // the method has Sources or Sinks, or is a stream
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

// Draining returns a context that is done when the node of a handler begins to drain: when the
// context of Serve is done, or by Shutdown or Close. ctx is that of the handler, or derived from it;
// for any other ctx the result is never done. The result may be used after the handler has returned.
//
// A node that drains refuses new calls, and waits for the handlers that run. These may go on, send
// items, and call other nodes, also the one that has called (CallFrom(ctx).Peer). The handler's own
// ctx is canceled only when Config.ShutdownTimeout has passed. So a handler that runs for long, such
// as that of a subscription, waits for Draining, too, and returns:
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
// A handler that is blocked in send, Receive, or on a Source or a Sink is not woken. A server
// interceptor can end that wait: it gives next a context that it cancels when Draining(ctx) is done
// (context.AfterFunc).
//
// In the simulator, where a handler must not block on a channel, qstest.Wait waits for
// Draining(ctx).Done(), and hg.Context.Wait for its Err. Both return when the node begins to drain.
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

// WithMetadata returns a context whose calls send value under name. The handler reads it with
// Metadata; the server does not pass it on.
//
//   - A name has 1 to 63 characters of a-z, 0-9, '.' and '-'. Names that begin with "qs-" are
//     reserved for the library; of these a program may only set hg.KeyMeta.
//   - A call has at most 16 names, and 8 KiB of names and values, with 3 bytes more for each.
//   - A call with more fails with hg.ErrOverflow, one with a bad name with ErrInvalid. Both are
//     NotRun.
func WithMetadata(ctx context.Context, name, value string) context.Context {
	was := metaOf(ctx)
	if was.err != nil {
		return ctx
	}
	m, err := was.m.With(name, value)
	return context.WithValue(ctx, metaKey{}, &metaFromContext{m, err})
}

// Metadata returns the value that the caller has sent under name with WithMetadata, or what a server
// interceptor has replaced it with. It is for handlers: ctx is that of the handler, or derived from
// it, and the handler has not returned.
//
// ok is false if the caller has sent nothing under name, if ctx is not that of a handler, and if
// name begins with "qs-": these names are the library's.
func Metadata(ctx context.Context, name string) (value string, ok bool) {
	c := CallFrom(ctx)
	if c == nil {
		return "", false
	}
	return c.Metadata.Get(name)
}

// A metaFromContext is the metadata that WithMetadata has collected, or the error of the first
// invalid entry.
type metaFromContext struct {
	m   hg.Metadata
	err error
}

// noMeta is the metadata of a context without WithMetadata.
var noMeta metaFromContext

// metaOf returns the metadata in ctx.
func metaOf(ctx context.Context) *metaFromContext {
	if m, ok := ctx.Value(metaKey{}).(*metaFromContext); ok {
		return m
	}
	return &noMeta
}

// addMetadata adds what an interceptor, called with ctx, has put into the next ctx by WithMetadata.
func (c *Call) addMetadata(ctx, next context.Context) (err error) {
	before, after := metaOf(ctx), metaOf(next)
	if after == before || after.err != nil {
		return after.err
	}
	for name, value := range after.m.All() {
		if old, ok := before.m.Get(name); ok && old == value {
			continue // an interceptor may have removed or changed it in c
		}
		if c.Metadata, err = c.Metadata.With(name, value); err != nil {
			return err
		}
	}
	return nil
}

// An attemptControl tracks the attempts of one call: those in flight, and the outcome of those that
// have finished. Cancel, Abandon, Withdraw and the end of the caller's context go through it, and
// each attempt asks it before it begins. hghook.Forbid closes the gap between that check and the
// Forward of the attempt, so that no cancellation is lost.
//
//	run ─► scope ─ interceptor ─ next ─► scope ─ interceptor ─ next ─► scope ─► attempt
//	         ▲                             ▲                             │ its fate
//	         └─────────────────────────────┴─────────────────────────────┘
type attemptControl struct {
	mu         sync.Mutex // guards the fields below
	stopErr    error      // if set, no further attempt begins
	pauses     int        // number of withdrawals in progress; while positive no attempt begins
	lastNumber int        // number of the last attempt
	attempts   *attempt   // attempts in flight, as a linked list
	first      attempt    // used for the first attempt, which saves an allocation
	lastAddr   hg.Addr    // address of the last attempt
	// triedAddrs are the addresses of earlier attempts; nil while all went to one address.
	triedAddrs    map[hg.Addr]struct{}
	streamedBytes int64     // bytes of Readers, Writers and streams that attempts have moved
	ioLeft        bool      // a Read or a Write of an ended attempt is still running
	top           callScope // the scope of the whole call
}

// A callScope is one call of next by an interceptor, or the whole call. Its fate covers all
// attempts in it, whatever errors the interceptors have returned.
type callScope struct {
	parent       *callScope // enclosing scope; nil for the whole call
	fate         hg.Fate    // worst fate of the attempts in the scope
	fateAttempt  int        // number of the attempt with that fate
	attemptCount int        // number of attempts that have begun
	openAttempts int        // number of attempts in flight
	closed       bool       // no further attempt begins
	// idle is closed when no attempt is in flight; closeScope makes it if it has to wait.
	idle chan struct{}

	// answers is the number of successful next calls by the interceptor in the scope.
	// outgoingCall.answerMu guards it.
	answers int
	// settled says that the interceptor has returned, and that its Call does not change any more.
	// outgoingCall.answerMu guards it.
	settled bool
}

// A nestedScope is the scope of one call of next, with the copy of the Call that the next
// interceptor or the attempt uses.
type nestedScope struct {
	callScope
	call          Call
	answersBefore int // answers of the parent when the scope began
}

// An attempt is one try to send a request and get its answer.
type attempt struct {
	scope  *callScope // nil when the attempt has ended
	number int        // counted from 1 within the call
	h      *hg.Handle // nil unless its call may be in flight
	loans  *loanSet   // nil if nothing is lent, and there is no stream
	next   *attempt   // next in attemptControl.attempts

	stalled    bool   // the attempt was canceled because it made no progress
	stallTimer *na.Op // timer of RetryPolicy.ProgressTimeout; nil if it does not run
	lastMoved  int64  // progress of loans when the timer last expired
}

var errNextLate = na.WithText(ErrInvalid, "next called after the call or the interceptor returned")

// recordAddr records the address to which the next attempt goes.
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

// hasTriedAddr reports whether an attempt of the call went to addr.
func (c *Call) hasTriedAddr(addr hg.Addr) bool {
	if c == nil {
		return false
	}
	c.ctl.mu.Lock()
	defer c.ctl.mu.Unlock()
	_, been := c.ctl.triedAddrs[addr]
	return been || c.ctl.lastAddr == addr
}

// spentReason returns why another attempt would lack bytes of a Reader, a Writer or a stream, or ""
// if it would not.
func (c *attemptControl) spentReason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ioLeft:
		return "a Read or Write of an earlier attempt is still running; retry with a new Reader or Writer"
	case c.streamedBytes > 0:
		return fmt.Sprintf("an earlier attempt transferred %d bytes of a Reader, Writer or stream; retry with a new one",
			c.streamedBytes)
	}
	return ""
}

// addSpent adds n bytes of Readers, Writers and streams that an attempt has moved. left says that a
// Read or a Write is still running.
func (c *attemptControl) addSpent(n int64, left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streamedBytes += n
	c.ioLeft = c.ioLeft || left
}

// beginErrLocked returns why no attempt may begin in s, or nil. The caller holds mu.
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

// addAttempt begins an attempt in s. n is the number that Retry gives it; attempts made at the same
// time count up from there.
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

// beginForward attaches h, which is about to be forwarded, to a, and starts the timer of a stall
// timeout. It fails if the call was canceled meanwhile.
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

// recordOutcome detaches the handle of a, whose call has ended, and records the fate of its
// request.
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

// removeAttempt ends a. It reports whether closeScope waits for that, so that the caller wakes it.
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

// closeScope lets no further attempt begin in s, and abandons those in flight. If there are any,
// the returned channel is closed when the last has ended; otherwise it is nil.
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

// isWithin reports whether the attempt belongs to a scope or to one nested in it.
func (a *attempt) isWithin(of *callScope) bool {
	for s := a.scope; s != nil; s = s.parent {
		if s == of {
			return true
		}
	}
	return false
}

// endCallLocked ends the call of a with f, if it is in flight, and otherwise forbids it to begin.
// It reports whether f was called. The caller holds attemptControl.mu.
func (a *attempt) endCallLocked(f func(*hg.Handle)) bool {
	if a.h == nil || hghook.Forbid(a.h) {
		return false
	}
	f(a.h)
	return true
}

// stopAttempts lets no further attempt begin, and calls f for each in flight. It reports whether
// there was one.
func (c *attemptControl) stopAttempts(f func(*hg.Handle)) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopErr = hg.ErrCanceled
	return c.endAttemptsLocked(f)
}

// endAttemptsLocked calls f for each attempt in flight, and forbids those that are about to begin.
// It reports whether f was called. The caller holds mu.
func (c *attemptControl) endAttemptsLocked(f func(*hg.Handle)) (any bool) {
	for a := c.attempts; a != nil; a = a.next {
		any = a.endCallLocked(f) || any
	}
	return any
}

// pauseAttempts does what stopAttempts does, but resumeAttempts lets attempts begin again.
func (c *attemptControl) pauseAttempts(f func(*hg.Handle)) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses++
	return c.endAttemptsLocked(f)
}

// resumeAttempts ends one pauseAttempts.
func (c *attemptControl) resumeAttempts() {
	c.mu.Lock()
	c.pauses--
	c.mu.Unlock()
}

// mayBeAnswered reports whether a request is outstanding, so that its server may still answer.
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

// isStopped reports whether the call was canceled or is being withdrawn.
func (c *attemptControl) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopErr != nil || c.pauses > 0
}

// hasStalled reports whether a was canceled by its stall timeout, and the call was not canceled
// otherwise.
func (c *attemptControl) hasStalled(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return a.stalled && c.beginErrLocked(a.scope) == nil
}

// withFate returns err as the error of the scope s, which ran with ctx. Its fate is the worst of
// the attempts in s and of err itself.
func (c *attemptControl) withFate(ctx context.Context, s *callScope, method string, err error) error {
	c.mu.Lock()
	fate, number := s.fate, s.fateAttempt
	if s.attemptCount < 2 {
		number = 0
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
		copied := *e
		copied.Fate, copied.Attempt = worst, number
		e = &copied
	}
	return hghook.EndedBy(ctx, e)
}

// checkStallLocked starts the stall timer of a. When it expires, a is withdrawn or abandoned if no
// byte has moved since the last time; otherwise the timer starts again. The caller holds mu.
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
