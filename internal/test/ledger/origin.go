package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// oneWay is how often a one-way call may run: once, and its success does not imply that it did.
const oneWay = 0

// An Origin makes calls, by one node after the other.
type Origin struct {
	Site
	Book    *Book
	Number  uint64 // of no other origin
	Seed    uint64
	Addr    string
	Config  func() qs.Config // of a node; the origin adds interceptors
	Targets []string         // the first one is exempt from the faults of the others
	Spared  bool             // and so is this origin: calls to the first target must succeed
	Callers int
	Streams int           // calls with a stream of each kind that are open all the time
	Rounds  int           // of calls for each node; 0 means for a time that is drawn
	Life    time.Duration // of a node, about
	MaxData int           // bytes of the largest transfer
	Pause   time.Duration // before a call, at most
	// Patience is how long calls in flight may take to end when a node is about to be closed.
	Patience time.Duration
	Off      Deeds // the actions that it omits

	calls   atomic.Uint64
	mu      sync.Mutex // guards the field below
	cancels []time.Duration
}

// Cancels returns how long calls took to end that were canceled or abandoned.
func (o *Origin) Cancels() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.cancels)
}

// A nodeLife is one node of an origin, from Open to Close, with its drawn configuration.
type nodeLife struct {
	*Origin
	rng      *rand.Rand
	node     *qs.Node
	peers    []qs.Peer
	attempts bool // are counted
	stalls   bool // attempts are given up
	again    bool // an interceptor retries calls for which that is safe
	sprints  bool // calls to the first target only, taken back as soon as they have begun
	desc     string
	over     atomic.Bool // no more calls
	cut      atomic.Bool // the node is closed in the middle of everything
	left     atomic.Int64
}

// Run runs nodes one after the other until ctx ends, or the given number if it is not 0.
func (o *Origin) Run(ctx context.Context, lives int) error {
	for n := uint64(0); ctx.Err() == nil && (lives == 0 || n < uint64(lives)); n++ {
		l := &nodeLife{Origin: o, rng: rand.New(rand.NewPCG(o.Seed, o.Number<<20|n))}
		if err := l.runLife(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *nodeLife) runLife(ctx context.Context) error {
	l.sprints = l.rng.IntN(4) == 0
	cfg := l.Config()
	cfg.ClientInterceptors = l.interceptors()
	var err error
	if l.node, err = l.Open(l.Addr, cfg); err != nil {
		return err
	}
	defer func() { _ = l.node.Close() }()
	all := [][]string{l.Targets[:1]}
	for i, t := range l.Targets[1:] {
		all = append(all, []string{t}, slices.Compact([]string{t, l.Targets[1+(i+1)%(len(l.Targets)-1)]}), []string{t, l.Targets[0]})
	}
	for _, addrs := range all {
		var p qs.Peer
		err := error(nil)
		o := l.drawOptions()
		for range 100 { // memory and room may be short for a moment
			if p, err = l.node.PeerWith(context.Background(), o, addrs...); err == nil {
				break
			}
			l.Sleep(time.Millisecond)
		}
		if err != nil {
			return err
		}
		l.peers = append(l.peers, p)
	}
	l.left.Store(int64(l.Callers + 3*l.Streams))
	for range l.Callers {
		c := newCaller(l, l.rng.Uint64())
		l.Go(func() {
			defer l.left.Add(-1)
			c.run()
		})
	}
	for i := range 3 * l.Streams {
		s := l.newStreamer(i)
		l.Go(func() {
			defer l.left.Add(-1)
			s.runStreams()
		})
	}
	if l.Streams > 0 && l.Spared {
		l.left.Add(1)
		l.Go(func() {
			defer l.left.Add(-1)
			l.pingSpared()
		})
	}
	end := time.Duration(0)
	if l.Rounds == 0 {
		end = l.Life/2 + time.Duration(l.rng.Int64N(int64(l.Life)))
	}
	const step = 5 * time.Millisecond
	for t := time.Duration(0); ctx.Err() == nil && l.left.Load() > 0 && (l.Rounds > 0 || t < end); t += step {
		if l.Rounds > 0 && l.rng.IntN(200) == 0 { // sooner than it would
			break
		}
		l.Sleep(step)
	}
	l.cut.Store(l.rng.IntN(2) == 0)
	l.over.Store(true)
	if l.cut.Load() {
		_ = l.node.Close()
	}
	for t := time.Duration(0); l.left.Load() > 0 && t < l.Patience; t += step {
		l.Sleep(step)
	}
	if left := l.left.Load(); left > 0 {
		// by number, for the audit
		l.Book.addWrong("%d calls have not ended %v after the last began", left, l.Patience)
		return nil
	}
	if st := l.node.HG().Stats(); !l.cut.Load() && (st.Lent != 0 || st.NA.Regions != 0) {
		l.Book.addWrong("all calls of a node have ended, and something is still lent: %+v", st)
	}
	if l.rng.IntN(2) == 0 {
		_ = l.node.Shutdown(context.Background())
	}
	return nil
}

// drawOptions draws how a Peer chooses its address.
func (l *nodeLife) drawOptions() (o qs.PeerOptions) {
	if l.Off&DeedPick != 0 {
		return o
	}
	o.Balancer = []qs.Balancer{nil, qs.RoundRobin(), qs.LeastLoaded()}[l.rng.IntN(3)]
	if l.rng.IntN(2) == 0 {
		o.HealthInterval = time.Duration(10+l.rng.IntN(200)) * time.Millisecond
	}
	return o
}

type attemptsKey struct{}

// interceptors draws those of a node. The innermost counts attempts.
func (l *nodeLife) interceptors() (is []qs.Interceptor) {
	l.desc = "plain"
	draw := l.rng.IntN(6)
	if draw == 0 {
		return nil
	}
	if draw >= 3 && l.Off&DeedRetry == 0 {
		p := qs.RetryPolicy{Attempts: 1 + l.rng.IntN(4), Backoff: time.Duration(l.rng.IntN(3)-1) * time.Millisecond, BudgetRatio: -1}
		if l.rng.IntN(4) == 0 {
			p.BudgetRatio = 0.5
		}
		if l.rng.IntN(2) == 0 {
			p.ProgressTimeout = time.Duration(1+l.rng.IntN(60)) * time.Millisecond
			l.stalls = true
			if l.rng.IntN(2) == 0 {
				p.WithdrawTimeout = time.Duration(1+l.rng.IntN(20)) * time.Millisecond
			}
		}
		is = append(is, qs.Retry(p))
		l.desc = fmt.Sprintf("retry %+v", p)
	}
	if l.rng.IntN(3) == 0 && l.Off&DeedSpare == 0 {
		delay := time.Duration(l.rng.Int64N(int64(time.Microsecond) << l.rng.IntN(14)))
		at := l.rng.IntN(len(is) + 1)
		is = slices.Insert(is, at, qs.Hedge(delay))
		l.desc += fmt.Sprint(" hedge ", delay, " at ", at)
	}
	if (draw == 2 || draw == 5) && l.Off&DeedTwice == 0 {
		at := l.rng.IntN(len(is) + 1)
		is = slices.Insert(is, at, retryOnce)
		l.again = true
		l.desc += fmt.Sprint(" twice at ", at)
	}
	l.attempts = true
	return append(is, func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
		if n, ok := ctx.Value(attemptsKey{}).(*atomic.Int32); ok {
			n.Add(1)
		}
		return next(ctx)
	})
}

// retryOnce is an interceptor as a program could define it: it retries a failed call once if that
// is safe and it has moved nothing.
func retryOnce(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
	err := next(ctx)
	if err != nil && c.Idempotent && c.BytesMoved == 0 {
		err = next(ctx)
	}
	return err
}

// maxRuns is how often a call may run.
func (l *nodeLife) maxRuns(again bool) int {
	if !again {
		return 1
	}
	return 100
}

// id gives out a number.
func (o *Origin) id() ID { return ID(o.Number<<perOrigin | (o.calls.Add(1) - 1)) }

// checkError checks that an error matches its code.
func checkError(err error) string {
	if err == nil {
		return ""
	}
	var is []string
	for _, code := range []qs.Code{qs.ErrCanceled, qs.ErrTimeout, qs.ErrPeerLost, qs.ErrUnreachable, qs.ErrClosed, hg.ErrRemote, qs.ErrInvalid, hg.ErrOverflow} {
		if errors.Is(err, code) {
			is = append(is, code.Error())
		}
	}
	switch {
	case qs.CodeOf(err) == 0:
		return "an error has no code"
	case len(is) > 1 && !isRemote(err):
		return "an error matches several codes: " + strings.Join(is, ", ")
	case errors.Is(err, qs.ErrTimeout) != errors.Is(err, context.DeadlineExceeded) && !isRemote(err):
		return "an error matches only one of ErrTimeout and context.DeadlineExceeded"
	case errors.Is(err, qs.ErrCanceled) != errors.Is(err, context.Canceled) && !isRemote(err):
		return "an error matches only one of ErrCanceled and context.Canceled"
	}
	return ""
}

func isRemote(err error) bool {
	_, ok := hg.RemoteOf(err)
	return ok
}
