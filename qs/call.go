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

// A Call describes an outgoing call to client interceptors. At the server, it describes a request
// to server interceptors and to its handler (see CallFrom). A client interceptor may change Peer
// and Metadata before the request is sent.
type Call struct {
	Method     string
	Idempotent bool // the method is declared Idempotent
	Peer       Peer // destination of the call; at the server, the caller
	// Metadata is sent with the input. Initially it holds the entries that WithMetadata added to
	// the context of the call. A client interceptor may set it, or call WithMetadata on the context
	// that it passes to next.
	Metadata hg.Metadata
	// In and Out point to the input and the output. At the server, In has been decoded before the
	// first interceptor runs.
	In, Out any
	// ResponseMetadata is sent with the output. A handler sets it. A client interceptor may read it
	// after next has returned.
	ResponseMetadata hg.Metadata
	Attempt          int // number of the attempt, starting at 1; incremented by Retry
	// BytesMoved is the number of bytes that this attempt transferred to and from the memory, files
	// and streams lent by the input. It is valid after next has returned.
	BytesMoved int64

	in  hg.Request // the request at the server; zero at the client
	ctl *attemptControl
	// retryDepth is the number of Retry interceptors that the call has passed through. Only the
	// innermost one repeats the call.
	retryDepth int
	// progressTimeout is RetryPolicy.ProgressTimeout. An attempt that makes no progress for this
	// long is canceled.
	progressTimeout time.Duration
	// withdrawTimeout is RetryPolicy.WithdrawTimeout, the time that a stalled attempt waits for its
	// withdrawal.
	withdrawTimeout time.Duration
	lends           bool // the method has Sources or Sinks, or is a stream
}

// Caller returns the sender of the request, as CallerFrom does in a handler: its address and, with
// TLS, its verified certificate and Name. It is for use at the server, and must be called before
// the handler or the interceptor returns. At the client it returns the zero Caller.
func (c *Call) Caller() Caller { return c.in.Caller() }

// CallFrom returns the request that ctx belongs to. ctx must be the context of a handler or derived
// from it. For any other context, CallFrom returns nil. The context passed to Config.Authorize is
// such a context, because Authorize receives the Call as an argument. CallFrom must be called
// before the handler returns, and is not safe for concurrent use. Most handlers need only
// CallerFrom and Metadata. A Call also provides the Peer, for calls back to the client, and
// ResponseMetadata.
func CallFrom(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Draining returns a context that is done when the handler's node begins to drain, that is, when
// the context of Serve is done or when Shutdown or Close is called. ctx must be the context of a
// handler or derived from it. For any other ctx the result is never done. The result may be used
// after the handler has returned.
//
// A draining node refuses new calls and waits for running handlers. They may continue, send items,
// and call other nodes, including their caller (CallFrom(ctx).Peer). The handler's own context is
// canceled only after Config.ShutdownTimeout. A long-running handler, such as that of a
// subscription, should therefore also wait for Draining, and return:
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
// A handler that is blocked in send, in Receive, or on a Source or Sink is not woken. A server
// interceptor can interrupt it by passing next a context that it cancels when Draining(ctx) is
// done, for example with context.AfterFunc.
//
// In the simulator, a handler must not block on a channel. There, use qstest.Wait to wait for
// Draining(ctx).Done(), or hg.Context.Wait with a condition on its Err. Both return when the node
// begins to drain.
func Draining(ctx context.Context) context.Context {
	if life, ok := ctx.Value(drainKey{}).(context.Context); ok {
		return life
	}
	return context.Background()
}

// CallerFrom returns the sender of the request that a handler is processing: its address and, with
// TLS, its verified certificate and Name. It returns the zero Caller if ctx is not the context of a
// handler. It must be called before the handler returns.
func CallerFrom(ctx context.Context) Caller {
	c := CallFrom(ctx)
	if c == nil {
		return Caller{}
	}
	return c.Caller()
}

type (
	callKey struct{}
	// drainKey is the context key for the result of Draining.
	drainKey struct{}
	metaKey  struct{}
)

// WithMetadata returns a copy of ctx. Each call made with it sends value under name as metadata,
// which the handler reads with Metadata. The server does not propagate the value to calls that it
// makes itself.
//
//   - A name has 1 to 63 characters of a-z, 0-9, '.' and '-'. Names that begin with "qs-" are
//     reserved for the library. Of these, a program may set only hg.KeyMeta.
//   - A call carries at most 16 names. Names and values total at most 8 KiB, with 3 bytes of
//     overhead for each entry.
//   - A call that exceeds a limit fails with hg.ErrOverflow, and one with an invalid name fails with
//     ErrInvalid. Both errors have the fate NotRun.
func WithMetadata(ctx context.Context, name, value string) context.Context {
	was := metaOf(ctx)
	if was.err != nil {
		return ctx
	}
	m, err := was.m.With(name, value)
	return context.WithValue(ctx, metaKey{}, &metaFromContext{m, err})
}

// Metadata returns the value that the caller set for name with WithMetadata, or the value with
// which a server interceptor replaced it. It is for use in handlers: ctx must be the context of the
// handler or derived from it, and the handler must not have returned.
//
// ok is false if the caller set no value for name, if ctx is not that of a handler, or if name
// begins with "qs-", which is reserved for the library.
func Metadata(ctx context.Context, name string) (value string, ok bool) {
	c := CallFrom(ctx)
	if c == nil {
		return "", false
	}
	return c.Metadata.Get(name)
}

// A metaFromContext holds the metadata collected by WithMetadata, or the error of the first invalid
// entry.
type metaFromContext struct {
	m   hg.Metadata
	err error
}

// noMeta is the metadata of a context on which WithMetadata was not called.
var noMeta metaFromContext

// metaOf returns the metadata that WithMetadata added to ctx, or &noMeta if there is none.
func metaOf(ctx context.Context) *metaFromContext {
	if m, ok := ctx.Value(metaKey{}).(*metaFromContext); ok {
		return m
	}
	return &noMeta
}

// addMetadata adds to c.Metadata the entries that an interceptor added by calling WithMetadata. ctx
// is the context that the interceptor received, and next is the context that it passed on.
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

// An attemptControl tracks the attempts of one call: those in flight, and the outcomes of completed
// ones. Cancel, Abandon, Withdraw and cancellation of the caller's context act through it, and each
// attempt consults it before starting. hghook.Forbid prevents a cancellation from being lost
// between that check and the Forward of the attempt.
//
// The attempts are grouped in nested scopes: one for the whole call and one for each call of next
// by an interceptor. The fate of an attempt is recorded in all scopes that contain it.
type attemptControl struct {
	mu         sync.Mutex // guards the fields below
	stopErr    error      // if set, no further attempt starts
	pauses     int        // number of withdrawals in progress; while positive, no attempt starts
	lastNumber int        // number of the last attempt
	attempts   *attempt   // attempts in flight, as a linked list
	first      attempt    // the first attempt, embedded to save an allocation
	lastAddr   hg.Addr    // address of the last attempt
	// triedAddrs is the set of addresses of attempts before the last one. It is nil until two
	// attempts have used different addresses.
	triedAddrs    map[hg.Addr]struct{}
	streamedBytes int64     // bytes that attempts have moved through Readers, Writers and streams
	ioLeft        bool      // a Read or Write of a completed attempt is still running
	top           callScope // the scope of the whole call
}

// A callScope represents one call of next by an interceptor, or the whole call. Its fate covers all
// attempts made within it, regardless of the errors that the interceptors return.
type callScope struct {
	parent       *callScope // enclosing scope; nil for the whole call
	fate         hg.Fate    // worst fate of the attempts in the scope
	fateAttempt  int        // number of the attempt with that fate
	attemptCount int        // number of attempts started
	openAttempts int        // number of attempts in flight
	closed       bool       // no further attempt starts
	// idle is closed when no attempt is in flight. It is nil unless closeScope had to wait for one.
	idle chan struct{}

	// answers is the number of successful calls of next by the scope's interceptor. It is guarded
	// by outgoingCall.answerMu.
	answers int
	// settled reports whether the interceptor has returned, after which its Call no longer changes.
	// It is guarded by outgoingCall.answerMu.
	settled bool
}

// A nestedScope is the scope of one call of next. It holds the copy of the Call that is passed to
// the next interceptor or to the attempt.
type nestedScope struct {
	callScope
	call          Call
	answersBefore int // value of the parent's answers when the scope began
}

// An attempt is one try to send a request and receive its response.
type attempt struct {
	scope  *callScope // nil once the attempt has completed
	number int        // starts at 1 within the call
	h      *hg.Handle // nil unless the call of the handle may be in flight
	loans  *loanSet   // nil if nothing is lent and there are no streams
	next   *attempt   // next in attemptControl.attempts

	stalled    bool   // the attempt was canceled because it made no progress
	stallTimer *na.Op // timer for RetryPolicy.ProgressTimeout; nil if not running
	lastMoved  int64  // value of loans.progress when the stall timer last expired
}

var errNextLate = na.WithText(ErrInvalid, "next called after the call or the interceptor returned")

// recordAddr records addr as the destination of the attempt that is about to start.
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

// hasTriedAddr reports whether any attempt of the call was sent to addr.
func (c *Call) hasTriedAddr(addr hg.Addr) bool {
	if c == nil {
		return false
	}
	c.ctl.mu.Lock()
	defer c.ctl.mu.Unlock()
	_, been := c.ctl.triedAddrs[addr]
	return been || c.ctl.lastAddr == addr
}

// countTriedAddrs returns the number of addresses to which attempts of the call were sent.
func (c *Call) countTriedAddrs() int {
	k := c.ctl
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.triedAddrs)
	if _, been := k.triedAddrs[k.lastAddr]; !been && !k.lastAddr.IsZero() {
		n++
	}
	return n
}

// spentReason returns the reason why another attempt could not transfer all bytes of a Reader,
// Writer or stream. It returns "" if another attempt is possible.
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

// addSpent adds n to the number of bytes that attempts have moved through Readers, Writers and
// streams. left reports whether a Read or Write of the attempt is still running.
func (c *attemptControl) addSpent(n int64, left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streamedBytes += n
	c.ioLeft = c.ioLeft || left
}

// beginErrLocked returns the reason why no attempt may start in s, or nil. c.mu must be held.
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

// addAttempt adds an attempt in s. The number of the attempt is n, which Retry assigned, or the
// next unused number if n has already been used. addAttempt fails if no attempt may start in s.
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

// beginForward attaches h, which is about to be forwarded, to a. It starts the stall timer if stall
// is positive. It returns an error if the call has been canceled since a was added.
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

// recordOutcome records fate as the outcome of a, and detaches a's handle. It must be called after
// the handle's call has completed.
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

// removeAttempt removes the completed attempt a. It reports whether a was the last attempt for
// which a caller of closeScope is waiting. In that case, the caller of removeAttempt must wake the
// context.
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

// closeScope prevents further attempts from starting in s and abandons those in flight. If there
// are any, it returns a channel that is closed when the last one has completed. Otherwise it
// returns nil.
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

// isWithin reports whether a belongs to the given scope or to one nested in it.
func (a *attempt) isWithin(of *callScope) bool {
	for s := a.scope; s != nil; s = s.parent {
		if s == of {
			return true
		}
	}
	return false
}

// endCallLocked calls f with the handle of a if the handle's call is in flight. Otherwise it
// prevents that call from starting. It reports whether it called f. attemptControl.mu must be held.
func (a *attempt) endCallLocked(f func(*hg.Handle)) bool {
	if a.h == nil || hghook.Forbid(a.h) {
		return false
	}
	f(a.h)
	return true
}

// stopAttempts prevents further attempts from starting and calls f with the handle of each attempt
// in flight. It reports whether it called f.
func (c *attemptControl) stopAttempts(f func(*hg.Handle)) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopErr = hg.ErrCanceled
	return c.endAttemptsLocked(f)
}

// endAttemptsLocked calls f with the handle of each attempt in flight, and prevents attempts that
// are about to start from starting. It reports whether it called f. c.mu must be held.
func (c *attemptControl) endAttemptsLocked(f func(*hg.Handle)) (any bool) {
	for a := c.attempts; a != nil; a = a.next {
		any = a.endCallLocked(f) || any
	}
	return any
}

// pauseAttempts is like stopAttempts, but attempts may start again after resumeAttempts has been
// called.
func (c *attemptControl) pauseAttempts(f func(*hg.Handle)) (any bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses++
	return c.endAttemptsLocked(f)
}

// resumeAttempts reverses the effect of one call of pauseAttempts.
func (c *attemptControl) resumeAttempts() {
	c.mu.Lock()
	c.pauses--
	c.mu.Unlock()
}

// mayBeAnswered reports whether the server may still respond to a request of the call.
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

// isStopped reports whether the call has been canceled or is being withdrawn.
func (c *attemptControl) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopErr != nil || c.pauses > 0
}

// hasStalled reports whether a was canceled because its stall timer expired. It returns false if
// the call itself has been canceled.
func (c *attemptControl) hasStalled(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return a.stalled && c.beginErrLocked(a.scope) == nil
}

// withFate returns err with the fate of scope s, which is the worst among the fate of err and those
// of the attempts in s. ctx is the context in which s ran.
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
	if last, ok := err.(*retriedError); ok {
		all := *last
		all.err = c.withFate(ctx, s, method, last.err)
		return &all
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

// checkStallLocked starts the stall timer of a, which expires after stall. If no byte has been
// transferred when it expires, a is withdrawn, or abandoned if withdraw is not positive. withdraw
// is the maximum time for the withdrawal. If bytes have been transferred, the timer is restarted.
// c.mu must be held.
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
