package sm

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// A contextCarrier implements carrier.Carrier and carrier.Inlet for one context.
//
// Peers that have sent something lately are hot: each poll checks their rings. The others are
// armed: a peer that writes to its ring rings the eventfd of this side, which makes it hot.
type contextCarrier struct {
	d       *domain
	e       carrier.Core
	poller  carrier.Poller
	work    atomic.Bool // Poll has work
	hasWarm atomic.Bool // warm is not empty

	// Used by the goroutine that polls only.
	hot    []*peer
	armed  bool
	buf    []byte // the packet that is received from a socket
	body   []byte // the body of the message that is handled
	m      ring.Taken
	head   frame.Header // the header of the frame that is handled
	copied int          // the bytes copied in this read
	spare  int          // a descriptor that is closed to receive one when no other is free; -1: none

	// Guarded by the endpoint's lock.
	peers      map[*peer]struct{}
	warm       []*peer        // peers to become hot
	halfOpen   []*peer        // half-open connections, which have not sent HELLO; oldest first
	failed     []*peer        // failed dials, which Poll reports
	redials    []*peer        // dials to repeat: the backlog was full, or the system did not take the HELLO
	unsent     []*peer        // peers to which the descriptors of this side's memory are to be sent again
	starved    []*peer        // peers that are not read until descriptors may be free
	resume     []*peer        // peers with more to send than one turn
	closing    []*peer        // dead peers, which Poll closes
	directGets []directGet    // gets that copy from memory of a peer
	released   bool           // Release was called
	listenerID carrier.PollID // the listening socket in the poller
	watching   bool           // the listening socket is in the poller
	acceptAt   time.Duration  // when accepting resumes after a lack of descriptors; 0 if it is not paused
}

const (
	// maxHot limits the hot peers.
	maxHot = 32
	// maxIdle is the number of sleeps without a message after which a peer is no longer hot.
	maxIdle = 64
	// helloTime limits the time from connect to HELLO.
	helloTime = 2 * time.Second
	// maxHalfOpen limits the connections that have not sent HELLO.
	maxHalfOpen = 1024
	// retryDelay is when a connect to a full backlog, or a packet that the system did not take, is
	// repeated.
	retryDelay = 5 * time.Millisecond
	// starvedPause is how long nothing that needs descriptors is received after the process ran out
	// of them.
	starvedPause = 100 * time.Millisecond
)

// sendTime limits how long the descriptors of this side's memory are sent again. A dial ends with
// ConnectTimeout. Tests shorten it.
var sendTime = 2 * time.Second

var (
	_ carrier.Carrier    = (*contextCarrier)(nil)
	_ carrier.WriteMeter = (*contextCarrier)(nil)
	_ carrier.Shelver    = (*contextCarrier)(nil)
	_ carrier.Inlet      = (*contextCarrier)(nil)
)

func (d *domain) newCarrier(e carrier.Core) (carrier.Carrier, error) {
	c := &contextCarrier{d: d, e: e, poller: e.Poller(), peers: map[*peer]struct{}{}, buf: make([]byte, maxPacket), spare: -1}
	d.acceptor.mu.Lock()
	defer d.acceptor.mu.Unlock()
	if d.acceptor.listener != nil {
		var err error
		if c.listenerID, err = c.poller.Add(d.acceptor.listener.fd, (*acceptorFD)(c)); err != nil {
			return nil, codes.WithText(codes.ErrIO, err.Error())
		}
		c.watching = true
	}
	d.acceptor.contexts = append(d.acceptor.contexts, c)
	c.holdSpare()
	c.poller.AddInlet(c)
	return c, nil
}

// Shut implements carrier.Carrier.
func (c *contextCarrier) Shut() {
	d := &c.d.acceptor
	d.mu.Lock()
	defer d.mu.Unlock()
	d.contexts = slices.DeleteFunc(d.contexts, func(other *contextCarrier) bool { return other == c })
	if c.watching {
		c.watching = false
		c.poller.Remove(d.listener.fd, c.listenerID)
	}
	if len(d.contexts) == 0 {
		d.closeListener()
	}
}

// Dial implements carrier.Carrier. Poll reports a dial that fails at once, because the caller is in
// the middle of starting an operation.
func (c *contextCarrier) Dial(l carrier.Session) {
	p := c.newPeerLocked(-1)
	p.link, p.dialling = l, true
	l.SetConn(p)
	c.dialLocked(p)
}

// dialLocked connects p, or queues it for another attempt or for the report of its failure.
func (c *contextCarrier) dialLocked(p *peer) {
	switch err := p.connectLocked(); err {
	case nil:
		return
	case unix.EAGAIN:
		p.due = c.d.now() + retryDelay
		c.redials = append(c.redials, p)
	default:
		p.err = err
		c.failed = append(c.failed, p)
	}
	c.pollSoonLocked()
}

// pollSoonLocked makes Poll do its work soon, and wakes the background poller: while callbacks of
// the context wait to run, no goroutine may be calling Progress.
func (c *contextCarrier) pollSoonLocked() {
	c.work.Store(true)
	c.e.PollSoon()
	c.e.FlushSoon()
}

// Flush implements carrier.Carrier.
func (c *contextCarrier) Flush(ls []carrier.Session) {
	for _, l := range ls {
		if p, _ := l.Conn().(*peer); p != nil {
			p.flushLocked()
		}
	}
}

// Stage implements carrier.Stager.
func (c *contextCarrier) Stage(l carrier.Session) carrier.Writer {
	p, _ := l.Conn().(*peer)
	if p == nil || p.writing || p.blocked || !p.up || p.dead.Load() || p.err != nil {
		return nil
	}
	return (*messageFlow)(p)
}

// Shelf implements carrier.Shelver.
func (c *contextCarrier) Shelf(l carrier.Session) carrier.Shelf {
	p, _ := l.Conn().(*peer)
	if p == nil || !p.up || p.dead.Load() || p.err != nil {
		return nil
	}
	return (*shelf)(p)
}

// Cut implements carrier.Carrier. Poll frees the memory and the descriptors.
func (c *contextCarrier) Cut(l carrier.Session, bye frame.Bye) {
	p, _ := l.Conn().(*peer)
	l.SetConn(nil)
	if p != nil {
		p.cutLocked(bye)
	}
}

// Taken implements carrier.WriteMeter.
func (c *contextCarrier) Taken(l carrier.Session, f carrier.Lane) (count uint64, waits bool) {
	p, _ := l.Conn().(*peer)
	if p == nil || !p.blocked || f != carrier.Messages {
		return 0, false
	}
	return p.end.Progress(), true
}

// Poll implements carrier.Carrier.
func (c *contextCarrier) Poll(now time.Duration) (next time.Duration) {
	if !c.work.Load() {
		return 0
	}
	c.e.Lock()
	defer c.e.UnlockInput()
	c.work.Store(false)
	failed, again, resume, closing := c.failed, c.redials, c.resume, c.closing
	c.failed, c.redials, c.resume, c.closing = nil, nil, nil, nil
	for _, p := range failed {
		if !p.dead.Load() {
			p.link.Fail(p.err)
		}
	}
	for _, p := range again {
		switch {
		case p.dead.Load():
		case now < p.due:
			c.redials = append(c.redials, p)
		default:
			c.dialLocked(p)
		}
	}
	c.resendMemoryLocked(now)
	c.resumePausedLocked(now)
	for _, p := range resume {
		p.inResume = false
		p.flushLocked()
	}
	for _, p := range closing {
		if p.isSendingLocked() {
			c.closing = append(c.closing, p)
			continue
		}
		p.closeLocked()
	}
	c.copyDirectGetsLocked()
	for len(c.halfOpen) > 0 && now >= c.halfOpen[0].due {
		c.halfOpen[0].cutLocked(frame.Bye{})
	}
	if c.acceptAt != 0 && now >= c.acceptAt {
		c.acceptAt = 0
		c.watchListenerLocked(true)
	}
	next = now
	if len(c.resume) == 0 && len(c.closing) == 0 && len(c.failed) == 0 && len(c.directGets) == 0 {
		next = c.nextDueLocked()
	}
	if next != 0 {
		c.work.Store(true)
	}
	return next
}

// resendMemoryLocked sends descriptors of memory again whose earlier send failed with EAGAIN.
func (c *contextCarrier) resendMemoryLocked(now time.Duration) {
	all := c.unsent
	c.unsent = nil
	for _, p := range all {
		switch {
		case p.dead.Load():
		case now < p.due:
			c.unsent = append(c.unsent, p)
		default:
			if err := p.sendMemoryLocked(); err != nil {
				p.link.Fail(err)
				continue
			}
			p.blocked = false // messages that waited for the area may be published
			p.flushLocked()
		}
	}
}

// nextDueLocked returns the time of the next timer: a repeated dial or packet, a paused peer, the
// end of a half-open connection, or the end of a pause in accepting. 0: there is none.
func (c *contextCarrier) nextDueLocked() (next time.Duration) {
	next = c.acceptAt
	for _, all := range [...][]*peer{c.redials, c.unsent, c.starved} {
		for _, p := range all {
			if next == 0 || p.due < next {
				next = p.due
			}
		}
	}
	if len(c.halfOpen) > 0 && (next == 0 || c.halfOpen[0].due < next) {
		next = c.halfOpen[0].due
	}
	return next
}

// Lingering implements carrier.Carrier. The last packet to a peer is sent at once or not at all.
func (c *contextCarrier) Lingering(time.Duration) bool { return false }

// Release implements carrier.Carrier.
func (c *contextCarrier) Release() {
	c.e.Lock()
	defer c.e.Unlock()
	c.released = true
	closeFD(&c.spare)
	for p := range c.peers {
		p.cutLocked(frame.Bye{})
		p.unwatch()
		p.closeReleasedLocked() // if a goroutine is sending, that one closes p
	}
	for _, r := range c.directGets {
		r.chunk.releaseUseLocked()
	}
	c.closing, c.redials, c.unsent, c.starved, c.failed, c.directGets = nil, nil, nil, nil, nil, nil
}

// queueHotLocked makes p hot at the next poll.
func (c *contextCarrier) queueHotLocked(p *peer) {
	if !p.hot.Load() && !p.inWarm {
		p.inWarm = true
		c.warm = append(c.warm, p)
		c.hasWarm.Store(true)
	}
}

// mergeHot makes the peers of warm hot.
func (c *contextCarrier) mergeHot() {
	c.e.Lock()
	warm := c.warm
	c.warm = nil
	c.hasWarm.Store(false)
	for _, p := range warm {
		p.inWarm = false
	}
	c.e.Pause()
	for _, p := range warm {
		c.makeHot(p)
	}
}

// makeHot makes a peer hot, and another one cold if there are too many. Only the goroutine that
// polls calls it.
func (c *contextCarrier) makeHot(p *peer) {
	if p.idle = 0; p.hot.Load() || p.dead.Load() || p.starved || p.end == nil {
		return
	}
	if len(c.hot) >= maxHot {
		coldest := 0
		for i, other := range c.hot {
			if other.idle > c.hot[coldest].idle {
				coldest = i
			}
		}
		if something, err := c.hot[coldest].arm(); !something && err == nil {
			c.makeCold(coldest)
		}
	}
	p.hot.Store(true)
	c.hot = append(c.hot, p)
	if !c.armed {
		p.end.Disarm()
	}
}

// makeCold makes the i-th hot peer cold. It is armed.
func (c *contextCarrier) makeCold(i int) {
	c.hot[i].hot.Store(false)
	c.hot = slices.Delete(c.hot, i, i+1)
}

// Peek implements carrier.Inlet.
func (c *contextCarrier) Peek() (came bool) {
	if c.hasWarm.Load() {
		c.mergeHot()
	}
	for i := 0; i < len(c.hot); i++ {
		p, err := c.nextReady(&i)
		if p == nil {
			break
		}
		if err != nil {
			p.fail(err)
			continue
		}
		came = true
		p.idle = 0
		p.read()
	}
	return came
}

// scratchBuffer returns n bytes into which a message is copied while it is handled. All peers share
// them.
func (c *contextCarrier) scratchBuffer(n int) []byte {
	if len(c.body) < n {
		c.body = make([]byte, n)
	}
	return c.body[:n]
}

// nextReady returns the next hot peer, from the i-th on, that has messages or freed room, or nil if
// there is none. An error is a fault in that peer's memory.
func (c *contextCarrier) nextReady(i *int) (found *peer, err error) {
	defer memfault.Off(memfault.On(), &err)
	for ; *i < len(c.hot); *i++ {
		p := c.hot[*i]
		found = p
		if !p.dead.Load() && p.end.Look() {
			return p, nil
		}
	}
	return nil, nil
}

// Arm implements carrier.Inlet.
func (c *contextCarrier) Arm() (work bool) {
	c.armed = true
	if c.hasWarm.Load() {
		c.mergeHot()
	}
	for i := 0; i < len(c.hot); i++ {
		p := c.hot[i]
		something, err := p.arm()
		switch {
		case err != nil:
			p.fail(err)
		case something:
			work = true
		case p.idle >= maxIdle:
			c.makeCold(i)
			i--
		default:
			p.idle++
		}
	}
	return work
}

// arm makes the peer ring the bell for its next message. something: it has written one already.
func (p *peer) arm() (something bool, err error) {
	defer memfault.Off(memfault.On(), &err)
	return !p.dead.Load() && p.end.Arm(), nil
}

// Disarm implements carrier.Inlet.
func (c *contextCarrier) Disarm() {
	c.armed = false
	for _, p := range c.hot {
		p.end.Disarm()
	}
}
