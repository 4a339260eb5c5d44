package qs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A RetryPolicy configures Retry. The zero value works.
type RetryPolicy struct {
	// Attempts is the maximum number of attempts of a call, including the first. Zero means 3,
	// negative no limit: the call is repeated until its context is done or the retry budget is
	// exhausted. To wait for a server that restarts, also set BudgetRatio to -1, and use deadlines.
	Attempts int
	// Backoff is the pause before the second attempt at one address. It doubles each time, up to 1
	// s, and half of it is random. There is no pause before an attempt at another healthy address.
	// Zero means 20 ms, negative no pause; if Attempts is unlimited, negative means 20 ms, too.
	Backoff time.Duration
	// ProgressTimeout is the time without a response, and without data transferred from Sources, to
	// Sinks or in streams, after which an attempt ends with ErrTimeout. Zero means no timeout. It
	// detects handlers that hang while their process is alive. It cannot distinguish them from a
	// slow handler or a queued request: choose several times the longest pause of a healthy
	// handler, for files and large buffers 30 s rather than 1 s. It also ends a stream without
	// items. A frozen process is detected after Config.PeerTimeout.
	ProgressTimeout time.Duration
	// WithdrawTimeout limits the time for which an attempt without progress tries to withdraw its
	// request from the server. If the server returns the request, it has not run, and can be
	// repeated even if its method is not idempotent. Zero means not to withdraw.
	WithdrawTimeout time.Duration
	// Codes are the codes of handlers that have run for which calls of Idempotent methods are
	// repeated. Nil means ErrUnavailable, ErrNotReady, ErrDraining and ErrAborted; an empty list
	// none. Codes of the program, 128 to 255, are never repeated unless they are listed: also if
	// the handler refuses with one, or an interceptor behind Retry puts one in front of another
	// code.
	Codes []Code
	// BudgetRatio is the retry budget: within 10 s at most 10 retries, plus BudgetRatio for each
	// first attempt. Retries at another healthy address are not counted. All calls of one node
	// through one Retry share the budget. Zero means 0.1, negative no limit.
	BudgetRatio float64
}

// Retry returns a client interceptor that repeats calls that did not run. For Idempotent methods it
// also repeats calls that may have run, and calls that failed with one of RetryPolicy.Codes. Each
// attempt uses a healthy address of the Peer that the call has not tried, if there is one.
//
// It does not retry permanent errors: bad requests, and permanent refusals of a server (see
// Refuse). It does not retry after ctx is done, or after bytes of a Reader or a Writer were
// transferred.
//
// Add it to Config.ClientInterceptors for all calls of a node, or to the options of Define for
// those of one method. If both have one, only the innermost Retry repeats calls, that of the
// method. Interceptors after it run once per attempt; those before it, and all of the node if it is
// an option of the method, run once per call:
//
//	qs.Config{ClientInterceptors: []qs.Interceptor{logAll, qs.Retry(qs.RetryPolicy{}), countAttempts}}
//	var get = qs.Define[Key, Value]("kv/get", qs.Idempotent(), qs.Retry(qs.RetryPolicy{Attempts: 5}))
//
// Create it once for a node or a method, not for each call, since it holds the retry budget. It has
// no effect at a server.
func Retry(p RetryPolicy) Interceptor {
	if p.Attempts == 0 {
		p.Attempts = 3
	}
	if p.Backoff == 0 || p.Backoff < 0 && p.Attempts < 0 {
		p.Backoff = 20 * time.Millisecond
	}
	if p.BudgetRatio == 0 {
		p.BudgetRatio = 0.1
	}
	if p.Codes == nil {
		p.Codes = []Code{ErrUnavailable, ErrNotReady, ErrDraining, ErrAborted}
	}
	return func(ctx context.Context, c *Call, next func(context.Context) error) error {
		if c.Peer.p == nil {
			return next(ctx) // fails, since there is no Peer
		}
		c.retryDepth++
		depth := c.retryDepth
		b := c.Peer.p.n.budgetFor(&p)
		c.progressTimeout, c.withdrawTimeout = p.ProgressTimeout, p.WithdrawTimeout
		b.countFirst(c.Peer)
		pause := p.Backoff
		n := c.Peer.p.n
		start := n.now()
		for ; ; c.Attempt++ {
			err := next(ctx)
			if err == nil || ctx.Err() != nil || !c.isRepeatable(err, p.Codes) {
				return err
			}
			if c.retryDepth > depth { // an inner Retry has given up; only the innermost repeats
				return err
			}
			if p.Attempts > 0 && c.Attempt >= p.Attempts {
				return &exhaustedError{err, attemptText(c.Attempt, p.Attempts, n.now()-start)}
			}
			elsewhere := c.Peer.hasOtherBackend(c)
			if !elsewhere && !b.tryRepeat(c.Peer) {
				return &exhaustedError{err,
					attemptText(c.Attempt, p.Attempts, n.now()-start) + "; the retry budget is exhausted, see RetryPolicy.BudgetRatio"}
			}
			if pause > 0 && !elsewhere {
				if c.Peer.p.n.sleep(ctx, c.Peer.p.n.jitterOf(pause)) != nil {
					return err
				}
				pause = min(2*pause, time.Second)
			}
		}
	}
}

// attemptText returns a text such as "attempt 3 of 5, 61.2ms since the call began". The error of the
// attempt has only the time of that attempt. limit is the largest number of attempts, negative for no
// limit.
func attemptText(attempt, limit int, elapsed time.Duration) string {
	text := fmt.Sprintf("attempt %d", attempt)
	if limit > 0 {
		text += fmt.Sprintf(" of %d", limit)
	}
	unit := time.Nanosecond
	for elapsed/unit >= 1000 { // keep about three digits
		unit *= 10
	}
	return fmt.Sprintf("%s, %v since the call began", text, elapsed.Round(unit))
}

// An exhaustedError is the error of the last attempt that Retry made. The fate of all attempts is
// written into err, see withFate.
type exhaustedError struct {
	err  error
	note string // the number of the attempt, and the reason that it was the last
}

func (e *exhaustedError) Error() string { return e.err.Error() + " (" + e.note + ")" }

func (e *exhaustedError) Unwrap() error { return e.err }

// isRepeatable reports whether a call that ended with err may be repeated, and may succeed then.
// codes is RetryPolicy.Codes.
func (c *Call) isRepeatable(err error, codes []Code) bool {
	if c.ctl.isStopped() || c.ctl.spentReason() != "" {
		return false
	}
	if FateOf(err) != NotRun && !c.Idempotent {
		return false
	}
	code := hg.CodeOf(err)
	if code >= 128 { // the program's, of a handler, or of an interceptor in front of any other code
		return slices.Contains(codes, code)
	}
	switch r, ok := hg.RemoteOf(err); {
	case ok && !r.Refused:
		return slices.Contains(codes, r.Code)
	case ok:
		code = r.Code
	case code == hg.ErrClosed || FateOf(err) == Ran:
		return false // this node was closed, or the answer cannot be decoded
	}
	switch code {
	case ErrNoMethod, ErrNoEntry, hg.ErrPermission, hg.ErrOverflow, hg.ErrInvalid, na.ErrProtocol,
		hg.ErrUnsupported, ErrBadInput, ErrDenied, ErrNotFound, ErrAlreadyExists:
		return false
	}
	return true
}

// budgetFor returns the retry budget of the node for the Retry interceptor that p belongs to.
func (n *Node) budgetFor(p *RetryPolicy) *retryBudget {
	b, ok := n.budgets.Load(p)
	if !ok {
		b, _ = n.budgets.LoadOrStore(p, &retryBudget{ratio: p.BudgetRatio})
	}
	return b.(*retryBudget)
}

// A retryBudget limits retries in relation to first attempts. It counts in periods of budgetPeriod,
// and looks at the current and the previous one.
type retryBudget struct {
	ratio float64 // see RetryPolicy.BudgetRatio

	mu          sync.Mutex    // guards the fields below
	periodStart time.Duration // start of the current period
	firsts      [2]int        // first attempts in the current and the previous period
	retries     [2]int        // retries in the current and the previous period
}

const (
	budgetPeriod = 5 * time.Second
	freeRetries  = 10 // retries in two periods that are allowed without first attempts
)

// rollPeriodLocked begins a new period if the current one is over. The caller holds mu.
func (b *retryBudget) rollPeriodLocked(to Peer) {
	if to.p == nil {
		return
	}
	now := to.p.n.now()
	for range 2 {
		if now-b.periodStart < budgetPeriod {
			return
		}
		b.firsts[1], b.retries[1] = b.firsts[0], b.retries[0]
		b.firsts[0], b.retries[0] = 0, 0
		b.periodStart += budgetPeriod
	}
	b.periodStart = now
}

// countFirst counts a first attempt.
func (b *retryBudget) countFirst(to Peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rollPeriodLocked(to)
	b.firsts[0]++
}

// tryRepeat counts a retry if the budget allows one, and reports whether it does.
func (b *retryBudget) tryRepeat(to Peer) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rollPeriodLocked(to)
	if b.ratio >= 0 && float64(b.retries[0]+b.retries[1]) >= freeRetries+b.ratio*float64(b.firsts[0]+b.firsts[1]) {
		return false
	}
	b.retries[0]++
	return true
}
