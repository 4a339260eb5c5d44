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
// A peer that has recently sent a message is hot, which means that every poll checks its rings. All
// other peers are cold. When a cold peer writes to a ring, it signals this side's eventfd and
// becomes hot.
type contextCarrier struct {
	d       *domain
	e       carrier.Core
	poller  carrier.Poller
	work    atomic.Bool // whether Poll has work to do
	hasWarm atomic.Bool // whether warm is not empty

	// The fields below are used only by the goroutine that polls.
	hot    []*peer
	armed  bool
	buf    []byte // holds the packet being received from a socket
	body   []byte // holds the body of the message being handled
	m      ring.Taken
	head   frame.Header // header of the frame being handled
	copied int          // number of bytes copied in the current read
	spare  int          // descriptor that is closed so that another one can be received when none is free; -1 if there is none

	// The endpoint's lock guards the fields below.
	peers      map[*peer]struct{}
	warm       []*peer        // peers that will become hot
	halfOpen   []*peer        // connections whose HELLO has not arrived, oldest first
	failed     []*peer        // failed dials, to be reported by Poll
	redials    []*peer        // dials to retry, because the peer's backlog was full or the system did not accept the HELLO
	unsent     []*peer        // peers to which the descriptors of this side's memory must be sent again
	starved    []*peer        // peers that are not read until descriptors may be free
	resume     []*peer        // queue of peers with more bulk data than they have sent in a turn
	closing    []*peer        // dead peers, to be closed by Poll
	directGets []directGet    // gets that copy from a peer's memory
	reachedAt  time.Duration  // time of the last Poll that copied for directGets
	released   bool           // whether Release was called
	listenerID carrier.PollID // ID of the listening socket in the poller
	watching   bool           // whether the listening socket is in the poller
	acceptAt   time.Duration  // time at which accepting resumes after descriptors were exhausted; 0 if it is not paused
}

const (
	// maxHot is the maximum number of hot peers.
	maxHot = 32
	// maxIdle is the number of sleeps without a message after which a peer is no longer hot.
	maxIdle = 64
	// helloTime is the maximum time from connect to HELLO.
	helloTime = 2 * time.Second
	// maxHalfOpen is the maximum number of connections whose HELLO has not arrived.
	maxHalfOpen = 1024
	// retryDelay is the time after which connecting to a peer whose backlog was full, or sending a
	// packet that the system did not accept, is retried.
	retryDelay = 5 * time.Millisecond
	// starvedPause is how long the context stops accepting connections, or reading from a peer,
	// after the process has run out of descriptors.
	starvedPause = 100 * time.Millisecond
)

// sendTime is the maximum time for which sending the descriptors of this side's memory is retried.
// For a dial, ConnectTimeout applies instead. Tests shorten sendTime.
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

// Dial implements carrier.Carrier. If the dial fails immediately, the next Poll reports the
// failure, because the caller is in the middle of starting an operation.
func (c *contextCarrier) Dial(l carrier.Session) {
	p := c.newPeerLocked(-1)
	p.link, p.dialling = l, true
	l.SetConn(p)
	c.dialLocked(p)
}

// dialLocked connects p. If connecting fails, dialLocked queues p, either for another attempt or
// for Poll to report the failure. The endpoint's lock must be held.
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

// pollSoonLocked makes the next Poll look for work and wakes the background poller. Waking it is
// necessary because there may be no goroutine calling Progress while the context's callbacks are
// waiting to run. The endpoint's lock must be held.
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

// Cut implements carrier.Carrier. Poll releases the memory and the descriptors.
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
	failed, again, closing := c.failed, c.redials, c.closing
	c.failed, c.redials, c.closing = nil, nil, nil
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
	c.resumeLocked()
	for _, p := range closing {
		if p.isSendingLocked() {
			c.closing = append(c.closing, p)
			continue
		}
		p.closeLocked()
	}
	if now != c.reachedAt { // Progress with timeout 0 polls several times at one time
		c.reachedAt = now
		c.copyDirectGetsLocked()
	}
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

// resumeLocked continues to send to the peers in c.resume in turn, until it has sent at least
// maxPieces pieces of bulk data. The endpoint's lock must be held. resumeLocked releases the lock
// while it copies.
func (c *contextCarrier) resumeLocked() {
	for sent := 0; sent < maxPieces && len(c.resume) > 0; {
		p := c.resume[0]
		c.resume = slices.Delete(c.resume, 0, 1)
		p.inResume = false
		p.flushLocked()
		sent += maxPieces - p.quota
	}
}

// resendMemoryLocked retries sending the descriptors of this side's memory to the peers in
// c.unsent. The endpoint's lock must be held.
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
			p.blocked = false // messages that waited for the area can now be published
			p.flushLocked()
		}
	}
}

// nextDueLocked returns the time of the next timer: a retried dial or packet, the end of a peer's
// pause, the expiry of a half-open connection, or the end of a pause in accepting. It returns 0 if
// no timer is set. The endpoint's lock must be held.
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

// Lingering implements carrier.Carrier. It returns false, because the last packet to a peer is
// either sent at once or not at all.
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
		p.closeReleasedLocked() // if a goroutine is sending, that goroutine closes p when it has finished
	}
	for _, r := range c.directGets {
		r.chunk.releaseUseLocked()
	}
	c.closing, c.redials, c.unsent, c.starved, c.failed, c.directGets = nil, nil, nil, nil, nil, nil
}

// queueHotLocked adds p to the peers that become hot at the next poll. The endpoint's lock must be
// held.
func (c *contextCarrier) queueHotLocked(p *peer) {
	if !p.hot.Load() && !p.inWarm {
		p.inWarm = true
		c.warm = append(c.warm, p)
		c.hasWarm.Store(true)
	}
}

// mergeHot makes the peers in c.warm hot and empties c.warm. The caller must not hold the
// endpoint's lock.
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

// makeHot makes p hot. If there are already maxHot hot peers, it first makes the least active one
// cold, unless that peer has just written a message or freed room. Only the goroutine that polls
// the context may call makeHot.
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

// makeCold removes the i-th peer from the hot peers. The peer must be armed, so that it signals
// this side's eventfd when it writes its next message.
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

// scratchBuffer returns a buffer of n bytes to which a message is copied while it is handled. The
// buffer is shared by all peers of the context and is valid until the next message is handled. Only
// the goroutine that polls the context may call scratchBuffer.
func (c *contextCarrier) scratchBuffer(n int) []byte {
	if len(c.body) < n {
		c.body = make([]byte, n)
	}
	return c.body[:n]
}

// nextReady returns the first hot peer, starting at index *i, that has messages or freed room, and
// sets *i to its index. It returns nil if there is no such peer. An error indicates a fault in the
// memory of the returned peer.
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

// arm requests that the peer signal this side's eventfd when it writes a message or frees room.
// something reports whether the peer has already done so.
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
