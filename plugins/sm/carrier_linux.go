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

// A carrier is what a context has for its peers. It is the carrier.Inlet of the context, too.
//
// Of the peers, those that had something to say lately are hot: the leader looks at them each time. The others are armed all the time:
// their bells bring them back.
type contextCarrier struct {
	d      *domain
	e      carrier.Core
	poller carrier.Poller
	work   atomic.Bool // for Poll
	fresh  atomic.Bool // warm is not empty

	// Of the goroutine that leads.
	hot    []*peer
	armed  bool
	buf    []byte // for what peers say,
	body   []byte // and for a message of theirs
	m      ring.Taken
	head   frame.Header // of the frame that is handled
	copied int          // bytes of a read
	spare  int          // a descriptor that is given up where there is no other; -1

	// Guarded by the endpoint's lock.
	peers    map[*peer]struct{}
	warm     []*peer // to become hot
	guests   []*peer // that have not said hello, the oldest first
	failed   []*peer // dials
	redials  []*peer // dials that found the door full, or whose HELLO the system did not take
	unsent   []*peer // to whom the system did not take our memory
	starved  []*peer // left alone until descriptors may be free
	resume   []*peer // that have more to send than one turn
	closing  []*peer
	reaches  []directGet // gets that copy
	released bool
	id       carrier.PollID // of the door
	watching bool
	doorShut time.Duration // until when nobody is let in; 0: it is open
}

const (
	// maxHot bounds the peers at which every look is.
	maxHot = 32
	// maxIdle is after how many sleeps in which nothing came from it a peer is not hot any more.
	maxIdle = 64
	// helloTime is how long a process that connects may take to say hello.
	helloTime = 2 * time.Second
	// maxGuests is how many may be about to say it.
	maxGuests = 1024
	// againAfter is when a full door is tried again, and a packet sent again that the system did not take.
	againAfter = 5 * time.Millisecond
	// restTime is how long nobody is let in after the process ran out of descriptors: the door stays ready meanwhile.
	restTime = 100 * time.Millisecond
)

// sendTime is for how long our memory is sent again; a dial ends with ConnectTimeout. Tests shorten it.
var sendTime = 2 * time.Second

var (
	_ carrier.Carrier    = (*contextCarrier)(nil)
	_ carrier.WriteMeter = (*contextCarrier)(nil)
	_ carrier.Shelver    = (*contextCarrier)(nil)
	_ carrier.Inlet      = (*contextCarrier)(nil)
)

func (d *domain) newCarrier(e carrier.Core) (carrier.Carrier, error) {
	c := &contextCarrier{d: d, e: e, poller: e.Poller(), peers: map[*peer]struct{}{}, buf: make([]byte, maxPacket), spare: -1}
	d.door.mu.Lock()
	defer d.door.mu.Unlock()
	if d.door.place != nil {
		var err error
		if c.id, err = c.poller.Add(d.door.place.fd, (*acceptorFD)(c)); err != nil {
			return nil, codes.WithText(codes.ErrIO, err.Error())
		}
		c.watching = true
	}
	d.door.open = append(d.door.open, c)
	c.holdSpare()
	c.poller.AddInlet(c)
	return c, nil
}

// Shut implements carrier.Carrier.
func (c *contextCarrier) Shut() {
	d := &c.d.door
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open = slices.DeleteFunc(d.open, func(other *contextCarrier) bool { return other == c })
	if c.watching {
		c.watching = false
		c.poller.Remove(d.place.fd, c.id)
	}
	if len(d.open) == 0 {
		d.closeListener()
	}
}

// Dial implements carrier.Carrier. What fails at once is reported by Poll: the caller is in the middle of starting an operation.
func (c *contextCarrier) Dial(l carrier.Session) {
	p := c.newPeer(-1)
	p.link, p.dialling = l, true
	l.SetConn(p)
	c.dial(p)
}

func (c *contextCarrier) dial(p *peer) {
	switch err := p.connect(); err {
	case nil:
		return
	case unix.EAGAIN:
		p.due = c.d.now() + againAfter
		c.redials = append(c.redials, p)
	default:
		p.err = err
		c.failed = append(c.failed, p)
	}
	c.pollSoon()
}

// pollSoon has Poll look, of the background poller too: nobody drives a context whose callbacks wait to run. Locked.
func (c *contextCarrier) pollSoon() {
	c.work.Store(true)
	c.e.PollSoon()
	c.e.FlushSoon()
}

// Flush implements carrier.Carrier.
func (c *contextCarrier) Flush(ls []carrier.Session) {
	for _, l := range ls {
		if p, _ := l.Conn().(*peer); p != nil {
			p.flush()
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

// Cut implements carrier.Carrier. The memory and the descriptors are given back by Poll.
func (c *contextCarrier) Cut(l carrier.Session, bye frame.Bye) {
	p, _ := l.Conn().(*peer)
	l.SetConn(nil)
	if p != nil {
		p.cutWithBye(bye)
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
			c.dial(p)
		}
	}
	c.sendAgain(now)
	c.resumePaused(now)
	for _, p := range resume {
		p.resumes = false
		p.flush()
	}
	for _, p := range closing {
		if p.isSending() {
			c.closing = append(c.closing, p)
			continue
		}
		p.close()
	}
	c.reachOn()
	for len(c.guests) > 0 && now >= c.guests[0].due {
		c.guests[0].cutWithBye(frame.Bye{})
	}
	if c.doorShut != 0 && now >= c.doorShut {
		c.doorShut = 0
		c.watchDoor(true)
	}
	next = now
	if len(c.resume) == 0 && len(c.closing) == 0 && len(c.failed) == 0 && len(c.reaches) == 0 {
		next = c.nextDue()
	}
	if next != 0 {
		c.work.Store(true)
	}
	return next
}

// sendAgain sends the memory that the system did not take. Locked.
func (c *contextCarrier) sendAgain(now time.Duration) {
	all := c.unsent
	c.unsent = nil
	for _, p := range all {
		switch {
		case p.dead.Load():
		case now < p.due:
			c.unsent = append(c.unsent, p)
		default:
			if err := p.sendMemory(); err != nil {
				p.link.Fail(err)
				continue
			}
			p.blocked = false // what waited for the area may be published
			p.flush()
		}
	}
}

// nextDue is when a dial is tried again or a segment sent again, a guest has taken too long, or the door opens again.
func (c *contextCarrier) nextDue() (next time.Duration) {
	next = c.doorShut
	for _, all := range [...][]*peer{c.redials, c.unsent, c.starved} {
		for _, p := range all {
			if next == 0 || p.due < next {
				next = p.due
			}
		}
	}
	if len(c.guests) > 0 && (next == 0 || c.guests[0].due < next) {
		next = c.guests[0].due
	}
	return next
}

// Lingering implements carrier.Carrier: what is said last goes at once or not at all.
func (c *contextCarrier) Lingering(time.Duration) bool { return false }

// Release implements carrier.Carrier.
func (c *contextCarrier) Release() {
	c.e.Lock()
	defer c.e.Unlock()
	c.released = true
	closeFD(&c.spare)
	for p := range c.peers {
		p.cutWithBye(frame.Bye{})
		p.unwatch()
		p.closeReleased() // else the last that is busy does
	}
	for _, r := range c.reaches {
		r.chunk.releaseUse()
	}
	c.closing, c.redials, c.unsent, c.starved, c.failed, c.reaches = nil, nil, nil, nil, nil, nil
}

// warmUp has the leader look at a peer each time. Locked.
func (c *contextCarrier) warmUp(p *peer) {
	if !p.hot.Load() && !p.warming {
		p.warming = true
		c.warm = append(c.warm, p)
		c.fresh.Store(true)
	}
}

// mergeHot makes hot what others have warmed up.
func (c *contextCarrier) mergeHot() {
	c.e.Lock()
	warm := c.warm
	c.warm = nil
	c.fresh.Store(false)
	for _, p := range warm {
		p.warming = false
	}
	c.e.Pause()
	for _, p := range warm {
		c.makeHot(p)
	}
}

// makeHot makes a peer hot, and another one cold when there are too many. By the leader.
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

// makeCold makes a hot peer, which is armed, cold.
func (c *contextCarrier) makeCold(i int) {
	c.hot[i].hot.Store(false)
	c.hot = slices.Delete(c.hot, i, i+1)
}

// Peek implements carrier.Inlet.
func (c *contextCarrier) Peek() (came bool) {
	if c.fresh.Load() {
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

// scratchBuffer returns n bytes into which messages of a peer are copied, one at a time. They are shared by peers.
func (c *contextCarrier) scratchBuffer(n int) []byte {
	if len(c.body) < n {
		c.body = make([]byte, n)
	}
	return c.body[:n]
}

// nextReady returns the next hot peer, from the i-th, for which there is something to do; nil when there is none.
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
	if c.fresh.Load() {
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
