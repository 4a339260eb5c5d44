package tcp

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Connections whose socket is full are looked after: a peer that takes nothing for WriteTimeout is cut.
//
//	flush: socket full ─► stalls ─► lookAfter, ten times within WriteTimeout ─► room since, or less in the socket: all is well
//	                                                                       └─► still as much: longer, and at last fail

// stalled is the connections of a carrier that are looked after. The endpoint's lock guards it but for at.
type stalled struct {
	conns []*conn
	at    atomic.Int64 // when they are looked at next, a time of domain.now; 0 when there is none
	last  time.Duration
}

// A stall is what is known of one of them.
type stall struct {
	queued int           // bytes in the socket that the peer has not acknowledged
	since  time.Duration // how long there have been as many, and no room
}

func (s *stalled) due(now time.Duration) bool {
	at := s.at.Load()
	return at != 0 && now >= time.Duration(at)
}

// stalls has c looked after. Locked.
func (ca *polled) stalls(c *conn) {
	if c.stall != nil {
		return
	}
	c.stall = &stall{}
	s := &ca.stalled
	s.conns = append(s.conns, c)
	if len(s.conns) == 1 {
		s.last = ca.d.now()
		s.at.Store(int64(s.last + ca.d.opts.WriteTimeout/10))
		ca.e.Context().Nudge()
	}
}

// lookAfter looks at every connection that was stalled. Time counts only as fast as it is called: a freeze of this process is
// nobody else's fault.
func (ca *polled) lookAfter(now time.Duration) {
	ca.e.Lock()
	defer ca.e.Unlock()
	s, limit := &ca.stalled, ca.d.opts.WriteTimeout
	passed := min(now-s.last, limit/5)
	s.last = now
	conns := s.conns
	s.conns = nil
	for _, c := range conns {
		if c.dead || !c.blocked {
			c.stall = nil
			continue
		}
		queued, err := unix.IoctlGetInt(c.fd, unix.SIOCOUTQ)
		if err != nil || queued < c.stall.queued {
			c.stall.since = 0
		} else {
			c.stall.since += passed
		}
		c.stall.queued = queued
		if c.stall.since >= limit {
			c.stall = nil
			c.fail(ca.d.opts.unread())
			continue
		}
		s.conns = append(s.conns, c)
	}
	next := int64(0)
	if len(s.conns) > 0 {
		next = int64(now + limit/10)
	}
	s.at.Store(next)
}
