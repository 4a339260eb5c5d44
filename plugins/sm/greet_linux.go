package sm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/failpoint"
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// connect connects to the name of the session and sends HELLO; both are done at once, before the peer looks. It returns EAGAIN when the peer's
// backlog is full, and when the system takes no HELLO now; then p is as it was before. Locked.
func (p *peer) connect() error {
	name, err := parseName(p.link.Name())
	if err != nil {
		return err
	}
	path, err := p.c.d.opts.socketPath(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return codes.WithText(codes.ErrUnreachable, "make a socket: "+err.Error())
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		switch err {
		case unix.EAGAIN:
			return err
		case unix.ENOENT, unix.ECONNREFUSED:
			return codes.WithText(codes.ErrUnreachable, "nobody listens on "+p.link.Name())
		}
		return codes.WithText(codes.ErrUnreachable, "connect to "+path+": "+err.Error())
	}
	p.fd = fd
	uid, pid, err := peerCredentials(fd) // as it was when the peer began to listen
	p.recordCredentials(uid, pid)
	if err == nil {
		err = p.c.d.opts.checkUser(uid)
	}
	if err == nil {
		err = p.makeBell(pid)
	}
	if err == nil {
		err = p.sendHello(p.bell) // before the descriptors are watched: nobody else knows p, if it has to be sent again
	}
	if isTransient(err) {
		p.closeSocket()
		return unix.EAGAIN
	}
	if err != nil {
		return err
	}
	return p.watch()
}

// closeSocket closes the descriptors of a connection that nobody watches.
func (p *peer) closeSocket() {
	for _, fd := range []*int{&p.fd, &p.bell, &p.pidfd} {
		closeFD(fd)
	}
}

// recordCredentials notes the user and the process of the peer. A process of another namespace has no pid here, and is shown by its user only if that
// is another.
func (p *peer) recordCredentials(uid, pid int) {
	p.near = uid == unix.Geteuid()
	var parts []string
	if pid > 0 {
		parts = append(parts, fmt.Sprintf("pid %d", pid))
	}
	if !p.near {
		parts = append(parts, fmt.Sprintf("uid %d", uid))
	}
	p.remote = strings.Join(parts, " ")
}

// Remote implements carrier.Locator.
func (p *peer) Remote() string { return p.remote }

var _ carrier.Locator = (*peer)(nil)

// checkUser reports why a process of a user is not talked to.
func (o *Options) checkUser(uid int) error {
	if own := unix.Geteuid(); uid != own && !o.AnyUser {
		return codes.WithText(codes.ErrPermission, fmt.Sprintf("the peer belongs to user %d, this process to %d (Options.AnyUser)", uid, own))
	}
	return nil
}

// makeBell makes the bell that the peer gets, and watches its process unless that is our own.
func (p *peer) makeBell(pid int) (err error) {
	if p.bell, err = newBell(); err != nil {
		return err
	}
	if pid != unix.Getpid() {
		p.pidfd = watchProcess(p.fd, pid)
	}
	return nil
}

// sendHello sends HELLO with descriptors. The error is the system's if it is transient. Locked.
func (p *peer) sendHello(fds ...int) error {
	hello := p.link.Hello(carrier.Messages, nil, []byte(p.c.d.opts.dirID()))
	err := sendPacket(p.fd, kindHello, hello, fds...)
	if err != nil && !isTransient(err) {
		return codes.WithText(codes.ErrPeerLost, "send HELLO: "+err.Error())
	}
	return err
}

// sendMemory gives the peer the descriptors of our memory that it does not have: the segment, with HELLO if it has dialled us, and then the
// area. Our mappings live without them. What the system does not take now is sent by Poll (sendAgain). Locked.
func (p *peer) sendMemory() (err error) {
	if p.segment >= 0 {
		if p.dialling {
			err = sendPacket(p.fd, kindSegment, nil, p.segment)
		} else {
			err = p.sendHello(p.segment, p.bell)
		}
		if err == nil {
			closeFD(&p.segment)
		}
	}
	if err == nil && p.area >= 0 {
		if err = sendPacket(p.fd, kindArea, nil, p.area); err == nil {
			closeFD(&p.area)
		}
	}
	switch now := p.c.d.now(); {
	case err == nil:
		p.sendBy = 0
		return nil
	case !isTransient(err):
		return errEOF
	case p.sendBy != 0 && now >= p.sendBy:
		return codes.WithText(codes.ErrAgain, fmt.Sprintf("give the peer our memory: %v, for %v", err, sendTime))
	default:
		if p.sendBy == 0 {
			p.sendBy = now + sendTime
		}
		p.due = now + againAfter
		p.c.unsent = append(p.c.unsent, p)
		p.c.pollSoon()
		return nil
	}
}

// closeFD closes a descriptor; -1 is none.
func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}

// letIn takes in a process that has connected.
func (c *contextCarrier) letIn(fd int) {
	c.e.Lock()
	defer c.e.UnlockInput()
	p := c.newPeer(fd)
	p.due = c.d.now() + helloTime
	uid, pid, err := peerCredentials(fd)
	p.recordCredentials(uid, pid)
	if err == nil {
		err = c.d.opts.checkUser(uid)
	}
	if err == nil && len(c.guests) >= maxGuests {
		err = codes.WithText(codes.ErrAgain, fmt.Sprintf("%d processes are about to say hello, the limit is %d", maxGuests, maxGuests))
	}
	if err == nil {
		err = p.makeBell(pid)
	}
	if err == nil {
		err = p.watch()
	}
	if err != nil {
		p.cutWithBye(frame.ByeOf(err)) // with the reason: else who dials sees a socket that closes, and tries again
	} else {
		c.guests = append(c.guests, p)
		c.pollSoon()
	}
}

// recvPacket is recvPacket with the context's spare descriptor: the memory of most packets is mapped and the descriptor closed at once, so that
// one is enough. By the leader.
func (p *peer) recvPacket() (s packet, ok bool, err error) {
	c := p.c
	c.holdSpare()
	if s, ok, err = recvPacket(p.fd, c.buf); err != errStarved || c.spare < 0 {
		return s, ok, err
	}
	_ = unix.Close(c.spare)
	c.spare = -1
	return recvPacket(p.fd, c.buf)
}

// holdSpare makes the spare descriptor, if there is none and one is free. By the leader.
func (c *contextCarrier) holdSpare() {
	if c.spare < 0 {
		c.spare, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
}

// Ready implements carrier.Pollable: the peer has said something, or is gone.
func (p *peer) Ready(_, _ bool) {
	for !p.dead.Load() {
		s, ok, err := p.recvPacket()
		if err == errStarved {
			p.c.e.Lock()
			p.pauseForDescriptors()
			p.c.e.Unlock()
			return
		}
		if err != nil {
			p.onSocketEnd(err)
			return
		}
		if !ok {
			return
		}
		if p.handlePacket(&s) {
			return
		}
	}
}

// pauseForDescriptors leaves p alone for a while: descriptors may be free then. What it has sent stays where it is. Locked, by the leader.
func (p *peer) pauseForDescriptors() {
	if p.dead.Load() || p.starved {
		return
	}
	p.starved = true
	if i := slices.Index(p.c.hot, p); i >= 0 {
		p.c.makeCold(i)
	}
	_ = p.c.poller.Watch(p.fd, p.ids[0], false, false)
	p.due = p.c.d.now() + restTime
	p.c.starved = append(p.c.starved, p)
	p.c.pollSoon()
}

// resumePaused looks at those again that were left alone. Locked, by the leader.
func (c *contextCarrier) resumePaused(now time.Duration) {
	all := c.starved
	c.starved = nil
	for _, p := range all {
		switch {
		case p.dead.Load():
		case now < p.due:
			c.starved = append(c.starved, p)
		default:
			p.starved = false
			_ = c.poller.Watch(p.fd, p.ids[0], true, false) // Ready is called
			c.makeHot(p)                                    // it was not armed
		}
	}
}

// onSocketEnd is called when the socket has. What the peer had sent counts.
func (p *peer) onSocketEnd(err error) {
	p.drain()
	p.fail(err)
}

// handlePacket deals with a packet. It reports true when p is another context's from now on.
func (p *peer) handlePacket(s *packet) (moved bool) {
	defer s.closeRest()
	failpoint.Read(s.body)
	var err error
	switch {
	case s.kind >= firstOptional: // of a later release
		return false
	case p.link == nil && s.kind == kindHello:
		return p.onHello(s)
	case p.link == nil:
		err = codes.WithText(codes.ErrProtocol, fmt.Sprintf("packet %d before the hello", s.kind))
	case s.kind == kindBye:
		bye := frame.ParseBye(s.body) // the buffer is used again
		p.drain()                     // what the peer sent before its bye counts
		p.onBye(bye)
	case s.kind == kindHello && p.end == nil:
		err = p.onAnswer(s)
	case s.kind == kindSegment && p.end != nil && p.mem.peer == nil:
		err = p.takeSegment(s)
	case s.kind == kindArea && p.end != nil:
		err = p.mapArea(s)
	case (s.kind == kindWant || s.kind == kindChunk) && p.end != nil:
		err = p.serveMemory(s)
	default:
		err = codes.WithText(codes.ErrProtocol, fmt.Sprintf("packet %d where none is allowed", s.kind))
	}
	if err != nil {
		p.fail(err)
	}
	return false
}

// onBye ends the session of a peer that has said bye.
func (p *peer) onBye(bye frame.Bye) {
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	if !p.dead.Load() {
		p.link.Refused(bye)
	}
}

func (p *peer) serveMemory(s *packet) error {
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	return p.aboutPool(s)
}

// onHello hands a process that has said hello to the context that it names. It reports true when that is another one.
func (p *peer) onHello(s *packet) (moved bool) {
	from := p.c
	var g frame.Greeting
	var to *contextCarrier
	var err error
	if p.version, err = s.agree(false); err == nil {
		g, err = frame.ParseGreeting(s.body)
	}
	if err == nil {
		from.d.class.Redirect(&g)
		to, err = from.d.targetCarrier(int(g.Target))
	}
	if err == nil {
		err = s.checkDescriptors(1)
	}
	if err == nil {
		err = checkBell(s.fds[0])
	}
	if err == nil {
		err = p.makeEnd(&g, to) // without a lock: the system clears the pages
	}
	p.addTo(s, &g, to, err)
	return p.c != from
}

// addTo makes a process that has said hello a peer of to, unless there is an error already.
func (p *peer) addTo(s *packet, g *frame.Greeting, to *contextCarrier, err error) {
	from := p.c
	from.e.Lock()
	defer func() { p.c.e.UnlockAfter(recover()) }()
	if err == nil && !p.dead.Load() {
		p.peerBell = s.takeDescriptor(0)
		from.guests = slices.DeleteFunc(from.guests, func(other *peer) bool { return other == p })
		if to != from {
			err = p.moveTo(to)
		}
		if err == nil {
			err = p.bringUp(g)
		}
		if err == nil && to != from && !p.dead.Load() {
			err = p.watch() // not before: its new leader would take what it says next for its first words
		}
	}
	if err != nil {
		p.failLocked(err)
	}
}

// moveTo takes p to another context, where nobody watches it yet, unless that has been closed meanwhile. The context of p is locked,
// before and after. By its leader.
func (p *peer) moveTo(to *contextCarrier) error {
	from := p.c
	p.unwatch()
	delete(from.peers, p)
	from.e.Unlock() // two contexts are never locked at once: another peer may move the other way
	to.e.Lock()
	if _, err := from.d.targetCarrier(to.e.ID()); err != nil {
		to.e.Unlock()
		from.e.Lock()
		return err
	}
	p.c = to
	to.peers[p] = struct{}{}
	return nil
}

// isDir reports whether the label of a hello names dir. A later release may say more behind a semicolon.
func isDir(label, dir string) bool {
	name, _, _ := strings.Cut(label, ";")
	return name == dir
}

// bringUp brings the session of a process up that has said hello. Locked.
func (p *peer) bringUp(g *frame.Greeting) (err error) {
	if hungUp(p.fd) { // it went on without us: nobody's operations wait for it
		return errEOF
	}
	uid, _, err := peerCredentials(p.fd)
	if err != nil {
		return err
	}
	dir := p.c.d.opts.dirID()
	// In our directory its name leads to it and to nobody else; a peer of another user, or of another directory, may claim any name.
	verified := uid == unix.Geteuid() && dir != "" && isDir(string(g.Label), dir)
	if p.link, err = p.c.e.Admit(p.c, p, g, verified); err != nil {
		p.link = nil
		return err
	}
	p.peerGeometry = p.offeredGeometry(g)
	if err = p.sendMemory(); err != nil {
		p.link.Fail(err)
		return nil
	}
	p.startFrames()
	return nil
}

// hungUp reports whether the other end of a socket is closed.
func hungUp(fd int) bool {
	look := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(look, 0)
	return err == nil && look[0].Revents&unix.POLLHUP != 0
}

// startFrames lets frames go. Locked.
func (p *peer) startFrames() {
	p.up = true
	p.link.LaneUp()
	p.flush()
}

// offeredGeometry is the geometry of the segment that the peer writes: we guarantee the envelopes. Locked.
func (p *peer) offeredGeometry(g *frame.Greeting) ring.Geometry {
	own, _ := frame.ParseGreeting(p.link.Hello(carrier.Messages, nil, nil))
	return ring.Geometry{Envelopes: int(own.Envelopes) + frame.ExpeditedEnvelopes, Eager: min(int(own.Eager), int(g.Eager)), Version: p.version}
}

// makeEnd makes the segment that this side writes: the peer guarantees the envelopes. What the first messages need is touched: memory that
// cannot be had is missed now.
func (p *peer) makeEnd(g *frame.Greeting, c *contextCarrier) (err error) {
	if g.Envelopes < 1 || g.Envelopes > 4096 || g.Eager < 256 || g.Eager > 48<<10 {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("peer offers %d envelopes of %d bytes, out of bounds", g.Envelopes, g.Eager))
	}
	geo := ring.Geometry{Envelopes: int(g.Envelopes) + frame.ExpeditedEnvelopes, Eager: min(int(g.Eager), c.d.class.Config().Eager), Version: p.version}
	b, fd, err := makeMemory(geo.Size())
	if err != nil {
		return err
	}
	p.mem.own, p.segment = b, fd
	if p.end, err = probeMemory(b, geo); err != nil {
		return translateError(err)
	}
	if c.d.beside { // where it cannot be had the peer is reached by the first transport: later is too late for that
		return p.makeArea()
	}
	return nil
}

// makeArea maps the area for this side's messages. The peer gets it before any message that uses it.
func (p *peer) makeArea() error {
	b, fd, err := makeMemory(ring.AreaSize)
	if err != nil {
		return err
	}
	p.mem.ownArea, p.area = b, fd
	p.end.SetArea(b)
	return nil
}

func probeMemory(b []byte, geo ring.Geometry) (e *ring.End, err error) {
	defer memfault.Off(memfault.On(), &err)
	e = ring.New(b, geo)
	e.Probe()
	e.Arm() // nobody polls yet: the peer has to ring for its first message
	return e, nil
}

// onAnswer takes the hello of a process that was dialled, and gives it our segment.
func (p *peer) onAnswer(s *packet) error {
	var g frame.Greeting
	var err error
	if p.version, err = s.agree(true); err == nil {
		g, err = frame.ParseGreeting(s.body)
	}
	if err == nil {
		err = s.checkDescriptors(2)
	}
	if err == nil {
		err = checkBell(s.fds[1])
	}
	if err == nil {
		err = p.makeEnd(&g, p.c)
	}
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	switch {
	case p.dead.Load():
		return nil
	case err == nil:
		err = p.mapSegment(s.takeDescriptor(0), p.offeredGeometry(&g))
	}
	if err == nil {
		err = p.link.Greet(&g)
	}
	if err == nil {
		err = p.sendMemory()
	}
	if err != nil {
		p.failLocked(err)
		return nil
	}
	p.peerBell = s.takeDescriptor(1)
	p.startFrames()
	p.c.warmUp(p)
	return nil
}

// mapSegment maps the segment of the peer, whose descriptor it takes. Locked.
func (p *peer) mapSegment(fd int, geo ring.Geometry) (err error) {
	if p.mem.peer, err = mapMemory(fd, geo.Size()); err != nil {
		return err
	}
	p.buf = p.c.scratchBuffer(max(geo.Eager, ring.Inline))
	return p.connectEnd(geo)
}

func (p *peer) connectEnd(geo ring.Geometry) (err error) {
	defer memfault.Off(memfault.On(), &err)
	return p.end.Join(p.mem.peer, geo)
}

// takeSegment takes the segment of a process that has dialled. Its bell is rung: what was sent before could not.
func (p *peer) takeSegment(s *packet) error {
	if err := s.checkDescriptors(1); err != nil {
		return err
	}
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	if p.dead.Load() {
		return nil
	}
	if err := p.mapSegment(s.takeDescriptor(0), p.peerGeometry); err != nil {
		p.failLocked(err)
		return nil
	}
	ringBell(p.peerBell)
	p.blocked = false // there was no ring to report freed room in
	p.flush()
	p.c.warmUp(p)
	return nil
}

// mapArea takes the area of the peer.
func (p *peer) mapArea(s *packet) error {
	if err := s.checkDescriptors(1); err != nil {
		return err
	}
	b, err := mapMemory(s.takeDescriptor(0), ring.AreaSize)
	if err != nil {
		return err
	}
	if err := p.end.SetPeerArea(b); err != nil {
		unmap(&b)
		return err
	}
	p.mem.peerArea = b
	return nil
}

// fetchArea takes the area of a peer that has written to it: the packet was sent before. Locked.
func (p *peer) fetchArea() error {
	for {
		s, ok, err := p.recvPacket()
		if err != nil {
			return err
		}
		defer s.closeRest()
		switch {
		case ok && s.kind >= firstOptional:
			continue
		case ok && s.kind == kindArea:
			return p.mapArea(&s)
		case !ok || s.kind < kindWant:
			return codes.WithText(codes.ErrProtocol, "a message in an area that the peer does not share")
		}
		if err := p.aboutPool(&s); err != nil {
			return err
		}
	}
}

// aboutPool deals with a packet about a pool. Locked.
func (p *peer) aboutPool(s *packet) error {
	switch {
	case p.dead.Load():
		return nil
	case s.kind == kindWant:
		return p.sendChunk(s)
	}
	return p.mapChunk(s)
}

// translateError puts an error of the shared memory into the words of package na.
func translateError(err error) error {
	var code codes.Code
	switch {
	case errors.As(err, &code):
		return err
	case errors.Is(err, memfault.ErrFault):
		return codes.WithText(codes.ErrNoMemory, "memory shared with the peer could not be allocated")
	case errors.Is(err, ring.ErrBroken):
		return codes.WithText(codes.ErrProtocol, err.Error())
	}
	return codes.WithText(codes.ErrIO, err.Error())
}
