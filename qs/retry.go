package qs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A RetryPolicy configures Retry. The zero value is ready to use.
type RetryPolicy struct {
	// Attempts is the maximum number of attempts of a call, including the first. If zero, it is 3.
	// If negative, there is no limit and the call is repeated until its context is done or the
	// retry budget is exhausted. To wait for a server to restart, also set BudgetRatio to -1 and
	// use deadlines.
	Attempts int
	// Backoff is the pause before the second attempt at the same address. It doubles with each
	// attempt, up to 1 second, and half of it is random. There is no pause before an attempt at
	// another healthy address. If zero, Backoff is 20 ms. If negative, there is no pause, unless
	// the number of attempts is unlimited; then it is also 20 ms.
	Backoff time.Duration
	// ProgressTimeout is the time after which an attempt fails with ErrTimeout if there is neither
	// a response nor any data transferred from Sources, to Sinks or in streams. If zero, there is
	// no timeout. ProgressTimeout detects handlers that hang while their process is alive. It
	// cannot distinguish them from a slow handler or a queued request, so choose several times the
	// longest pause of a healthy handler: for files and large buffers, 30 s rather than 1 s. It
	// also applies to streams on which no items are sent. A frozen process is detected after
	// Config.PeerTimeout.
	ProgressTimeout time.Duration
	// WithdrawTimeout limits how long an attempt without progress tries to withdraw its request
	// from the server. If the server confirms that the handler has not begun, the request can be
	// repeated even if its method is not idempotent. If zero, requests are not withdrawn.
	WithdrawTimeout time.Duration
	// Codes lists the codes returned by handlers that have run for which calls of Idempotent
	// methods are repeated. If nil, they are ErrUnavailable, ErrNotReady, ErrDraining and
	// ErrAborted; if empty but not nil, there are none. Codes chosen by the program, 128 to 255,
	// are retried only if they are listed, even if the handler refuses the request with such a code
	// or an interceptor after Retry replaces another code with it.
	Codes []Code
	// BudgetRatio determines the retry budget. Within 10 seconds there are at most 10 retries, plus
	// BudgetRatio for each first attempt. Retries at another healthy address do not count. The
	// budget is shared by all calls of a node that use the same Retry interceptor. If zero,
	// BudgetRatio is 0.1; if negative, there is no limit.
	BudgetRatio float64
}

// Retry returns a client interceptor that retries calls that did not run. For Idempotent methods it
// also retries calls that may have run and calls that failed with one of RetryPolicy.Codes. Each
// attempt uses a healthy address of the Peer that the call has not tried yet, if there is one.
//
// It does not retry permanent errors, such as invalid requests and permanent refusals by a server
// (see Refuse). It does not retry after ctx is done, or after data of a Reader or a Writer has been
// transferred.
//
// Add it to Config.ClientInterceptors for all calls of a node, or to the options of Define for the
// calls of one method. If both contain a Retry, only the innermost one, that of the method, retries
// calls. Interceptors after Retry run once per attempt, and interceptors before it run once per
// call. If Retry is an option of the method, all interceptors of the node run once per call.
//
//	qs.Config{ClientInterceptors: []qs.Interceptor{logAll, qs.Retry(qs.RetryPolicy{}), countAttempts}}
//	var get = qs.Define[Key, Value]("kv/get", qs.Idempotent(), qs.Retry(qs.RetryPolicy{Attempts: 5}))
//
// Create one Retry per node or method, not one per call, because it holds the retry budget. It has
// no effect on a server.
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
			return next(ctx) // fails, because the call has no Peer
		}
		c.retryDepth++
		depth := c.retryDepth
		b := c.Peer.p.n.budgetFor(&p)
		c.progressTimeout, c.withdrawTimeout = p.ProgressTimeout, p.WithdrawTimeout
		b.countFirst(c.Peer)
		pause := p.Backoff
		n := c.Peer.p.n
		start := n.now()
		var first error     // the error of the first attempt
		var tried []hg.Addr // the first maxTriedNames addresses at which attempts failed
		stop := func(err error, why string) error {
			return &retriedError{err: err, first: first, attempts: c.Attempt, limit: p.Attempts,
				elapsed: n.now() - start, why: why, tried: tried, triedCount: c.countTriedAddrs()}
		}
		for ; ; c.Attempt++ {
			err := next(ctx)
			if err == nil || c.retryDepth > depth { // an inner Retry has stopped retrying this call
				return err
			}
			if first == nil {
				first = err
			}
			if addr := addrOf(err); len(tried) < maxTriedNames && !addr.IsZero() && !slices.Contains(tried, addr) {
				tried = append(tried, addr)
			}
			if ctx.Err() != nil || !c.isRepeatable(err, p.Codes) || p.Attempts > 0 && c.Attempt >= p.Attempts {
				if c.Attempt == 1 {
					return err
				}
				return stop(err, "")
			}
			elsewhere := c.Peer.hasOtherBackend(c)
			if !elsewhere && !b.tryRepeat(c.Peer) {
				return stop(err, "the retry budget is exhausted: see RetryPolicy.BudgetRatio")
			}
			if pause > 0 && !elsewhere {
				if c.Peer.p.n.sleep(ctx, c.Peer.p.n.jitterOf(pause)) != nil {
					return stop(err, "")
				}
				pause = min(2*pause, time.Second)
			}
		}
	}
}

// A retriedError is returned by Retry when it makes no further attempt. It wraps the error of the
// last attempt, whose text it completes. Its fate covers all attempts; see withFate.
type retriedError struct {
	err      error // error of the last attempt
	first    error // error of the first attempt; only its text is used
	attempts int   // number of the last attempt
	limit    int   // maximum number of attempts; negative if there is no limit
	elapsed  time.Duration
	why      string // reason why Retry stopped; "" if the error or the limit shows it

	tried      []hg.Addr // the first maxTriedNames addresses of attempts
	triedCount int       // number of addresses of attempts
}

// maxTriedNames is the maximum number of addresses in the text of a retriedError.
const maxTriedNames = 3

// addrOf returns the address at which the attempt with error err failed. It is zero if there is
// none.
func addrOf(err error) (addr hg.Addr) {
	if e, ok := errors.AsType[*hg.Error](err); ok {
		addr = e.Peer
	}
	return addr
}

// Error returns the text of the last attempt's error, with the number of attempts and the total
// time in place of the time of that attempt. The error of the first attempt follows if it differs,
// with its address if that is another one. If the errors do not differ but the addresses do, the
// addresses follow.
func (e *retriedError) Error() string {
	var after string
	switch {
	case e.limit > 0:
		after = fmt.Sprintf("after %d of %d attempts in ", e.attempts, e.limit)
	case e.attempts == 1:
		after = "after 1 attempt in "
	default:
		after = fmt.Sprintf("after %d attempts in ", e.attempts)
	}
	after += errtext.Round(e.elapsed).String()
	if e.why != "" {
		after += ", " + e.why
	}
	var text string
	if last, ok := e.err.(*hg.Error); ok {
		text = hghook.ErrorText(last, after)
	} else {
		text = e.err.Error() + errtext.Suffix(after)
	}
	first, fate := e.first, ""
	if in, ok := first.(*hg.Error); ok {
		first = in.Err
		if in.Fate != NotRun && in.Fate != FateOf(e.err) {
			fate = in.Fate.String()
		}
	}
	switch cause := errtext.Cause(first); {
	case !strings.Contains(text, e.comparableCause(cause)):
		text += "; first error"
		if addr := addrOf(e.first); !addr.IsZero() && addr != addrOf(e.err) {
			text += ", at " + addr.Label()
		}
		text += ": " + cause + errtext.Suffix(fate)
	case len(e.tried) > 1:
		text += "; tried " + e.triedText()
	}
	return text
}

// comparableCause returns cause, the text of the first error, without what two errors with the same
// cause do not share: the address and the time of the next dial.
func (e *retriedError) comparableCause(cause string) string {
	cause, _, _ = strings.Cut(cause, "; next dial in ")
	if first, last := addrOf(e.first), addrOf(e.err); !first.IsZero() && !last.IsZero() {
		_, from, _ := strings.Cut(first.Label(), "://")
		_, to, _ := strings.Cut(last.Label(), "://")
		if from != "" {
			cause = strings.ReplaceAll(cause, from, to)
		}
	}
	return cause
}

// triedText lists the addresses of the attempts.
func (e *retriedError) triedText() string {
	names := make([]string, len(e.tried))
	for i, addr := range e.tried {
		names[i] = addr.Label()
	}
	if more := e.triedCount - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

func (e *retriedError) Unwrap() error { return e.err }

// endedBy is like hghook.EndedBy, and keeps what Retry has added to err.
func endedBy(ctx context.Context, err error) error {
	if last, ok := err.(*retriedError); ok {
		ended := *last
		ended.err = endedBy(ctx, last.err)
		return &ended
	}
	return hghook.EndedBy(ctx, err)
}

// isRepeatable reports whether a call that failed with err may be repeated and could then succeed.
// codes is RetryPolicy.Codes.
func (c *Call) isRepeatable(err error, codes []Code) bool {
	if c.ctl.isStopped() || c.ctl.spentReason() != "" {
		return false
	}
	if FateOf(err) != NotRun && !c.Idempotent {
		return false
	}
	code := hg.CodeOf(err)
	if code >= 128 { // a code chosen by the program, returned by a handler or an interceptor
		return slices.Contains(codes, code)
	}
	switch r, ok := hg.RemoteOf(err); {
	case ok && !r.Refused:
		return slices.Contains(codes, r.Code)
	case ok:
		code = r.Code
	case code == hg.ErrClosed || FateOf(err) == Ran:
		return false // this node was closed, or the response cannot be decoded
	}
	switch code {
	case ErrNoMethod, ErrNoEntry, hg.ErrPermission, hg.ErrOverflow, hg.ErrInvalid, na.ErrProtocol,
		hg.ErrUnsupported, ErrBadInput, ErrDenied, ErrNotFound, ErrAlreadyExists:
		return false
	}
	return true
}

// budgetFor returns the retry budget of n for the Retry interceptor with policy p, creating it if
// necessary.
func (n *Node) budgetFor(p *RetryPolicy) *retryBudget {
	b, ok := n.budgets.Load(p)
	if !ok {
		b, _ = n.budgets.LoadOrStore(p, &retryBudget{ratio: p.BudgetRatio})
	}
	return b.(*retryBudget)
}

// A retryBudget limits the number of retries in proportion to that of first attempts. It counts
// both in periods of length budgetPeriod, and takes into account the current and the previous
// period.
type retryBudget struct {
	ratio float64 // see RetryPolicy.BudgetRatio

	mu          sync.Mutex    // guards the fields below
	periodStart time.Duration // start of the current period
	firsts      [2]int        // numbers of first attempts in the current and in the previous period
	retries     [2]int        // numbers of retries in the current and in the previous period
}

const (
	budgetPeriod = 5 * time.Second
	freeRetries  = 10 // number of retries allowed in two periods regardless of first attempts
)

// rollPeriodLocked starts a new period if the current one has expired. The caller must hold b.mu.
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

// tryRepeat reports whether the budget allows another retry. If it does, the retry is counted.
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
