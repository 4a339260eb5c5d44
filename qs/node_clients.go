package qs

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/loglimit"
)

// A ClientLimit limits the use of a node by all clients that share a name. The zero value means no
// limit.
type ClientLimit struct {
	// MaxConcurrent limits the number of running handlers for these clients, including stream
	// handlers. Zero means no limit.
	MaxConcurrent int
	// Rate limits the number of requests per second. Zero means no limit. Burst is the number of
	// requests that may start together after a pause. Zero means the value of Rate, but at least 1.
	Rate  float64
	Burst int
}

// problem describes what is invalid in l. It returns "" if l is valid.
func (l ClientLimit) problem() string {
	switch {
	case l.MaxConcurrent < 0:
		return fmt.Sprintf("MaxConcurrent is %d, want a positive number, or 0 for no limit",
			l.MaxConcurrent)
	case !(l.Rate >= 0) || math.IsInf(l.Rate, 0):
		return fmt.Sprintf("Rate is %v, want requests per second, or 0 for no limit", l.Rate)
	case l.Burst < 0 || l.Burst > 0 && l.Rate == 0:
		return fmt.Sprintf("Burst is %d, want 0, or a positive number and a Rate", l.Burst)
	}
	return ""
}

// burst returns the number of requests that may start together after a pause.
func (l ClientLimit) burst() float64 {
	if l.Burst > 0 {
		return float64(l.Burst)
	}
	return max(1, l.Rate)
}

// clientShares tracks usage by client name. A request acquires a share after it has been authorized
// and before its input is decoded.
type clientShares struct {
	n          *Node
	limits     map[string]ClientLimit // Config.ClientLimits
	logLimiter loglimit.Limiter       // limits the rate of log records about refusals

	mu      sync.Mutex            // guards the fields below
	holders map[hg.Request]string // name of the client, for each request that holds a share
	// shares contains an entry for each name whose clients have a running handler or a bucket that
	// is not full. It also contains some idle entries.
	shares  map[string]*clientShare
	sweepAt int // size of shares at which idle entries are removed
}

// A clientShare tracks the usage of all clients of one name: running handlers and a token bucket.
type clientShare struct {
	active int           // number of running handlers
	tokens float64       // number of requests that may start
	at     time.Duration // time of the last refill, by Node.now
}

// sweepNames is the minimum size of clientShares.shares at which idle entries are removed.
const sweepNames = 1024

// limitHandler returns a handler that acquires a share for the client and then calls h.
func (c *clientShares) limitHandler(h hg.Handler) hg.Handler {
	if len(c.limits) == 0 {
		return h
	}
	return func(r hg.Request) error {
		name := r.Caller().Name
		limit := c.limitOf(name)
		if limit == (ClientLimit{}) {
			return h(r)
		}
		if err := c.takeShare(r, name, limit); err != nil {
			if skipped, ok := c.logLimiter.Allow(c.n.now()); ok {
				c.n.logger().Warn("request refused by Config.ClientLimits", "rpc", r.Name(),
					"caller", name, "peer", r.Peer().Label(),
					"reason", err.Error(), "more", skipped)
			}
			return hg.Refuse(err)
		}
		defer c.returnShare(r)
		return h(r)
	}
}

// limitOf returns the limit for clients of the given name.
func (c *clientShares) limitOf(name string) ClientLimit {
	if limit, ok := c.limits[name]; ok {
		return limit
	}
	return c.limits[""]
}

// labelOf describes the client of the given name in an error text.
func labelOf(name string) string {
	if name == "" {
		return "clients without a verified name"
	}
	return fmt.Sprintf("client %q", name)
}

// takeShare acquires a share for request r. If a limit is reached, it returns the error with which
// r must be refused.
func (c *clientShares) takeShare(r hg.Request, name string, limit ClientLimit) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.n.now()
	s := c.shares[name]
	if s == nil {
		if len(c.shares) >= max(c.sweepAt, sweepNames) {
			c.dropIdleLocked(now)
		}
		s = &clientShare{tokens: limit.burst(), at: now}
		c.shares[name] = s
	}
	s.refill(limit, now)
	switch {
	case limit.MaxConcurrent > 0 && s.active >= limit.MaxConcurrent:
		return hg.Errorf(ErrExhausted,
			"%s: %d handlers are running, the limit of qs.Config.ClientLimits at the server",
			labelOf(name), s.active)
	case limit.Rate > 0 && s.tokens < 1:
		return hg.Errorf(ErrExhausted,
			"%s: more than %g requests per second, the limit of qs.Config.ClientLimits at the server",
			labelOf(name), limit.Rate)
	}
	if s.active++; limit.Rate > 0 {
		s.tokens--
	}
	c.holders[r] = name
	return nil
}

// refill adds the tokens accrued since the last refill.
func (s *clientShare) refill(limit ClientLimit, now time.Duration) {
	s.tokens = min(limit.burst(), s.tokens+(now-s.at).Seconds()*limit.Rate)
	s.at = now
}

// returnShare releases the share of a request. Further calls have no effect. returnShare must be
// called before the response is sent, because the client may make its next call as soon as it has
// received the response.
func (c *clientShares) returnShare(r hg.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name, ok := c.holders[r]; ok {
		delete(c.holders, r)
		c.shares[name].active--
	}
}

// dropIdleLocked removes the shares without running handlers and with a full bucket, which is their
// initial state. c.mu must be held.
func (c *clientShares) dropIdleLocked(now time.Duration) {
	for name, s := range c.shares {
		limit := c.limitOf(name)
		if s.refill(limit, now); s.active == 0 && s.tokens >= limit.burst() {
			delete(c.shares, name)
		}
	}
	c.sweepAt = 2 * len(c.shares)
}
