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

// connectLocked connects to the socket that the session names and sends the HELLO, without waiting
// for the peer to accept the connection. If the peer's backlog is full or the system cannot accept
// the HELLO at the moment, connectLocked returns EAGAIN and leaves p unchanged. The endpoint's lock
// must be held.
func (p *peer) connectLocked() error {
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
		return codes.WithText(codes.ErrUnreachable, "create a socket: "+err.Error())
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		switch err {
		case unix.EAGAIN:
			return err
		case unix.ENOENT, unix.ECONNREFUSED:
			return codes.WithText(codes.ErrUnreachable, "no process listens on "+p.link.Name())
		}
		return codes.WithText(codes.ErrUnreachable, "connect to "+path+": "+err.Error())
	}
	p.fd = fd
	uid, pid, err := peerCredentials(fd) // for a dialed socket, those of the process that called listen(2)
	p.recordCredentials(uid, pid)
	if err == nil {
		err = p.c.d.opts.checkUser(uid)
	}
	if err == nil {
		err = p.makeBell(pid)
	}
	if err == nil {
		// Send before the descriptors are watched, so that p can be closed at once if the HELLO has
		// to be sent again.
		err = p.sendHelloLocked(p.bell)
	}
	if isTransient(err) {
		p.closeSocket()
		return unix.EAGAIN
	}
	if err != nil {
		return err
	}
	return p.watchLocked()
}

// closeSocket closes p's socket and the other descriptors opened for it. None of them may be in a
// poller.
func (p *peer) closeSocket() {
	for _, fd := range []*int{&p.fd, &p.bell, &p.pidfd} {
		closeFD(fd)
	}
}

// recordCredentials records in p the peer's user and the text that Remote returns. The text
// contains the process ID, which is unknown if the process is in another PID namespace, and the
// user if it differs from this process's user.
func (p *peer) recordCredentials(uid, pid int) {
	p.sameUser = uid == unix.Geteuid()
	var parts []string
	if pid > 0 {
		parts = append(parts, fmt.Sprintf("pid %d", pid))
	}
	if !p.sameUser {
		parts = append(parts, fmt.Sprintf("uid %d", uid))
	}
	p.remote = strings.Join(parts, " ")
}

// Remote implements carrier.Locator.
func (p *peer) Remote() string { return p.remote }

var _ carrier.Locator = (*peer)(nil)

// checkUser returns an error if connections to processes of the user with ID uid are not permitted.
func (o *Options) checkUser(uid int) error {
	if own := unix.Geteuid(); uid != own && !o.AnyUser {
		return codes.WithText(codes.ErrPermission, fmt.Sprintf("the peer runs as user %d, this process as user %d (Options.AnyUser)", uid, own))
	}
	return nil
}

// makeBell creates the eventfd to be sent to the peer. Unless pid is this process, it also opens a
// pidfd for the peer's process.
func (p *peer) makeBell(pid int) (err error) {
	if p.bell, err = newBell(); err != nil {
		return err
	}
	if pid != unix.Getpid() {
		p.pidfd = watchProcess(p.fd, pid)
	}
	return nil
}

// sendHelloLocked sends a HELLO with the given descriptors. It returns errors of the system that
// are transient, as reported by isTransient, unchanged. The endpoint's lock must be held.
func (p *peer) sendHelloLocked(fds ...int) error {
	hello := p.link.Hello(carrier.Messages, nil, []byte(p.c.d.opts.dirID()))
	err := sendPacket(p.fd, kindHello, hello, fds...)
	if err != nil && !isTransient(err) {
		return codes.WithText(codes.ErrPeerLost, "send HELLO: "+err.Error())
	}
	return err
}

// sendMemoryLocked sends the peer those descriptors of this side's memory that the peer does not
// have yet, and closes the ones sent. It sends the segment first, together with a HELLO if the peer
// dialed, and then the area. If the system cannot accept a descriptor at the moment, Poll retries
// sending it. The endpoint's lock must be held.
func (p *peer) sendMemoryLocked() (err error) {
	if p.segment >= 0 {
		if p.dialling {
			err = sendPacket(p.fd, kindSegment, nil, p.segment)
		} else {
			err = p.sendHelloLocked(p.segment, p.bell)
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
		return codes.WithText(codes.ErrAgain, fmt.Sprintf("send descriptors of shared memory: %v for %v", err, sendTime))
	default:
		if p.sendBy == 0 {
			p.sendBy = now + sendTime
		}
		p.due = now + retryDelay
		p.c.unsent = append(p.c.unsent, p)
		p.c.pollSoonLocked()
		return nil
	}
}

// closeFD closes *fd and sets it to -1, which means no descriptor.
func closeFD(fd *int) {
	if *fd >= 0 {
		_ = unix.Close(*fd)
		*fd = -1
	}
}

// handleConn creates a peer for the accepted connection fd, or rejects and closes the connection.
func (c *contextCarrier) handleConn(fd int) {
	c.e.Lock()
	defer c.e.UnlockInput()
	p := c.newPeerLocked(fd)
	p.due = c.d.now() + helloTime
	uid, pid, err := peerCredentials(fd)
	p.recordCredentials(uid, pid)
	if err == nil {
		err = c.d.opts.checkUser(uid)
	}
	if err == nil && len(c.halfOpen) >= maxHalfOpen {
		err = codes.WithText(codes.ErrAgain, fmt.Sprintf("too many connections without HELLO: %d, the limit is %d", maxHalfOpen, maxHalfOpen))
	}
	if err == nil {
		err = p.makeBell(pid)
	}
	if err == nil {
		err = p.watchLocked()
	}
	if err != nil {
		// Without the reason, the peer would assume that the connection was lost and dial again.
		p.cutLocked(frame.ByeOf(err))
	} else {
		c.halfOpen = append(c.halfOpen, p)
		c.pollSoonLocked()
	}
}

// recvPacket receives a packet. If no descriptor is free, it closes the context's spare descriptor
// to make room. One spare is enough, because most packets with descriptors carry memory, and the
// descriptor is closed as soon as the memory is mapped. Only the goroutine that polls the context
// may call recvPacket.
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

// holdSpare opens the context's spare descriptor if it is not open and the process has a free
// descriptor. Only the goroutine that polls the context may call holdSpare.
func (c *contextCarrier) holdSpare() {
	if c.spare < 0 {
		c.spare, _ = unix.Eventfd(0, unix.EFD_CLOEXEC)
	}
}

// Ready implements carrier.Pollable. It handles the packets that have arrived on the peer's socket,
// and the closing of the socket.
func (p *peer) Ready(_, _ bool) {
	for !p.dead.Load() {
		s, ok, err := p.recvPacket()
		if err == errStarved {
			p.c.e.Lock()
			p.pauseForDescriptorsLocked()
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

// pauseForDescriptorsLocked stops reading from p for starvedPause, because the process has no free
// descriptors. The peer's data stays in the socket and in the rings. Only the goroutine that polls
// the context may call pauseForDescriptorsLocked. The endpoint's lock must be held.
func (p *peer) pauseForDescriptorsLocked() {
	if p.dead.Load() || p.starved {
		return
	}
	p.starved = true
	if i := slices.Index(p.c.hot, p); i >= 0 {
		p.c.makeCold(i)
	}
	_ = p.c.poller.Watch(p.fd, p.ids[0], false, false)
	p.due = p.c.d.now() + starvedPause
	p.c.starved = append(p.c.starved, p)
	p.c.pollSoonLocked()
}

// resumePausedLocked resumes reading from the peers whose pause has expired. Only the goroutine
// that polls the context may call resumePausedLocked. The endpoint's lock must be held.
func (c *contextCarrier) resumePausedLocked(now time.Duration) {
	all := c.starved
	c.starved = nil
	for _, p := range all {
		switch {
		case p.dead.Load():
		case now < p.due:
			c.starved = append(c.starved, p)
		default:
			p.starved = false
			_ = c.poller.Watch(p.fd, p.ids[0], true, false) // causes Ready to be called
			c.makeHot(p)                                    // p was not armed, so the peer may have written without ringing the bell
		}
	}
}

// onSocketEnd ends the session with err because the socket is closed. It first handles the messages
// that the peer has already sent.
func (p *peer) onSocketEnd(err error) {
	p.drain()
	p.fail(err)
}

// handlePacket handles a packet from the peer. moved reports whether p now belongs to another
// context.
func (p *peer) handlePacket(s *packet) (moved bool) {
	defer s.closeRest()
	failpoint.Read(s.body)
	var err error
	switch {
	case s.kind >= firstOptional: // a kind defined by a later release
		return false
	case p.link == nil && s.kind == kindHello:
		return p.onHello(s)
	case p.link == nil:
		err = codes.WithText(codes.ErrProtocol, fmt.Sprintf("packet of kind %d before HELLO", s.kind))
	case s.kind == kindBye:
		bye := frame.ParseBye(s.body) // before drain, which may reuse the buffer
		p.drain()                     // handle the messages that the peer sent earlier
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
		err = codes.WithText(codes.ErrProtocol, fmt.Sprintf("unexpected packet of kind %d", s.kind))
	}
	if err != nil {
		p.fail(err)
	}
	return false
}

// onBye ends the session because the peer has sent bye.
func (p *peer) onBye(bye frame.Bye) {
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	if !p.dead.Load() {
		p.link.Refused(bye)
	}
}

// serveMemory handles a request for a pool chunk or the answer to such a request. It acquires the
// endpoint's lock.
func (p *peer) serveMemory(s *packet) error {
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	return p.handlePoolPacketLocked(s)
}

// onHello handles the HELLO of a peer that has connected, and passes the peer to the context that
// the HELLO names. moved reports whether p then belongs to another context than before.
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
		err = p.makeEnd(&g, to) // without a lock, because the system clears the pages
	}
	p.addTo(s, &g, to, err)
	return p.c != from
}

// addTo adds p, the sender of the HELLO s, to the peers of the context to. If err is not nil, it
// instead rejects p with err.
func (p *peer) addTo(s *packet, g *frame.Greeting, to *contextCarrier, err error) {
	from := p.c
	from.e.Lock()
	defer func() { p.c.e.UnlockAfter(recover()) }()
	if err == nil && !p.dead.Load() {
		p.peerBell = s.takeDescriptor(0)
		from.halfOpen = slices.DeleteFunc(from.halfOpen, func(other *peer) bool { return other == p })
		if to != from {
			err = p.moveTo(to)
		}
		if err == nil {
			err = p.bringUpLocked(g)
		}
		if err == nil && to != from && !p.dead.Load() {
			// Watch only now. If p had been watched earlier, the goroutine that polls the new
			// context would treat the peer's next packet as the HELLO.
			err = p.watchLocked()
		}
	}
	if err != nil {
		p.failLocked(err)
	}
}

// moveTo moves p to another context, unless that context has been closed in the meantime. It does
// not add p to that context's poller. The caller must hold the lock of the old context, which
// moveTo releases. On return, the lock of the context that p then belongs to is held. Only the
// goroutine that polls the old context may call moveTo.
func (p *peer) moveTo(to *contextCarrier) error {
	from := p.c
	p.unwatch()
	delete(from.peers, p)
	from.e.Unlock() // never lock two contexts at once, because another peer may be moving in the other direction
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

// isDir reports whether label, the label of a HELLO, contains the directory ID dir. A later release
// may append a semicolon and more text, which isDir ignores.
func isDir(label, dir string) bool {
	name, _, _ := strings.Cut(label, ";")
	return name == dir
}

// bringUpLocked admits the peer that has sent the greeting g, and sends the peer the descriptors of
// this side's memory. The endpoint's lock must be held.
func (p *peer) bringUpLocked(g *frame.Greeting) (err error) {
	if hungUp(p.fd) { // the peer canceled the dial
		return errEOF
	}
	uid, _, err := peerCredentials(p.fd)
	if err != nil {
		return err
	}
	dir := p.c.d.opts.dirID()
	// Within the same directory, a name identifies a single process. A peer of another user or with
	// another directory may claim any name.
	verified := uid == unix.Geteuid() && dir != "" && isDir(string(g.Label), dir)
	if p.link, err = p.c.e.Admit(p.c, p, g, verified); err != nil {
		p.link = nil
		return err
	}
	p.peerGeometry = p.offeredGeometryLocked(g)
	if err = p.sendMemoryLocked(); err != nil {
		p.link.Fail(err)
		return nil
	}
	p.startFramesLocked()
	return nil
}

// hungUp reports whether the other end of the socket is closed.
func hungUp(fd int) bool {
	look := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(look, 0)
	return err == nil && look[0].Revents&unix.POLLHUP != 0
}

// startFramesLocked makes the session start sending frames to the peer. The endpoint's lock must be
// held.
func (p *peer) startFramesLocked() {
	p.up = true
	p.link.LaneUp()
	p.flushLocked()
}

// offeredGeometryLocked returns the geometry of the segment that the peer writes, which depends on
// the envelopes that this side guarantees to the peer. The endpoint's lock must be held.
func (p *peer) offeredGeometryLocked(g *frame.Greeting) ring.Geometry {
	own, _ := frame.ParseGreeting(p.link.Hello(carrier.Messages, nil, nil))
	return ring.Geometry{Envelopes: int(own.Envelopes) + frame.ExpeditedEnvelopes, Eager: min(int(own.Eager), int(g.Eager)), Version: p.version}
}

// makeEnd creates the segment that this side writes. Its geometry depends on the envelopes that the
// peer guarantees in g. makeEnd writes to the pages that the first messages need, so that a lack of
// memory is detected immediately.
func (p *peer) makeEnd(g *frame.Greeting, c *contextCarrier) (err error) {
	if g.Envelopes < 1 || g.Envelopes > 4096 || g.Eager < 256 || g.Eager > 48<<10 {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("HELLO frame offers %d envelopes of %d bytes, out of range", g.Envelopes, g.Eager))
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
	if c.d.beside { // create the area now, because the session can switch to the other transport only at this point
		return p.makeArea()
	}
	return nil
}

// makeArea creates the area that this side writes. The area must be sent to the peer before any
// message that uses the area.
func (p *peer) makeArea() error {
	b, fd, err := makeMemory(ring.AreaSize)
	if err != nil {
		return err
	}
	p.mem.ownArea, p.area = b, fd
	p.end.SetArea(b)
	return nil
}

// probeMemory creates an End that writes the segment b. It returns an error if the system has no
// memory for the segment's first pages.
func probeMemory(b []byte, geo ring.Geometry) (e *ring.End, err error) {
	defer memfault.Off(memfault.On(), &err)
	e = ring.New(b, geo)
	e.Probe()
	e.Arm() // the peer is not hot yet, so it must ring the bell for its first message
	return e, nil
}

// onAnswer handles the HELLO with which a dialed process answers, and sends that process this
// side's segment.
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
		err = p.mapSegmentLocked(s.takeDescriptor(0), p.offeredGeometryLocked(&g))
	}
	if err == nil {
		err = p.link.Greet(&g)
	}
	if err == nil {
		err = p.sendMemoryLocked()
	}
	if err != nil {
		p.failLocked(err)
		return nil
	}
	p.peerBell = s.takeDescriptor(1)
	p.startFramesLocked()
	p.c.queueHotLocked(p)
	return nil
}

// mapSegmentLocked maps the peer's segment and closes fd. The endpoint's lock must be held.
func (p *peer) mapSegmentLocked(fd int, geo ring.Geometry) (err error) {
	if p.mem.peer, err = mapMemory(fd, geo.Size()); err != nil {
		return err
	}
	p.buf = p.c.scratchBuffer(max(geo.Eager, ring.Inline))
	return p.connectEnd(geo)
}

// connectEnd adds the peer's segment, which has the geometry geo, to p.end.
func (p *peer) connectEnd(geo ring.Geometry) (err error) {
	defer memfault.Off(memfault.On(), &err)
	return p.end.Join(p.mem.peer, geo)
}

// takeSegment maps the segment of a process that dialed, and then wakes that process. Messages may
// have been published before the segment arrived, when this side could not tell whether the peer
// was sleeping.
func (p *peer) takeSegment(s *packet) error {
	if err := s.checkDescriptors(1); err != nil {
		return err
	}
	p.c.e.Lock()
	defer p.c.e.UnlockInput()
	if p.dead.Load() {
		return nil
	}
	if err := p.mapSegmentLocked(s.takeDescriptor(0), p.peerGeometry); err != nil {
		p.failLocked(err)
		return nil
	}
	ringBell(p.peerBell)
	p.blocked = false // without the segment, the peer could not report freed room
	p.flushLocked()
	p.c.queueHotLocked(p)
	return nil
}

// mapArea maps the peer's area, whose descriptor is in s.
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

// fetchAreaLocked receives and maps the peer's area. It is called when a message uses the area. The
// peer sends the area before such a message, so the area's packet is already in the socket. The
// endpoint's lock must be held.
func (p *peer) fetchAreaLocked() error {
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
			return codes.WithText(codes.ErrProtocol, "message in an area that the peer does not share")
		}
		if err := p.handlePoolPacketLocked(&s); err != nil {
			return err
		}
	}
}

// handlePoolPacketLocked handles a request for a pool chunk or the answer to such a request. The
// endpoint's lock must be held.
func (p *peer) handlePoolPacketLocked(s *packet) error {
	switch {
	case p.dead.Load():
		return nil
	case s.kind == kindWant:
		return p.sendChunkLocked(s)
	}
	return p.mapChunkLocked(s)
}

// translateError returns an error for err that has a code of package codes.
func translateError(err error) error {
	var code codes.Code
	switch {
	case errors.As(err, &code):
		return err
	case errors.Is(err, memfault.ErrFault):
		return codes.WithText(codes.ErrNoMemory, "cannot allocate memory shared with the peer")
	case errors.Is(err, ring.ErrBroken):
		return codes.WithText(codes.ErrProtocol, err.Error())
	}
	return codes.WithText(codes.ErrIO, err.Error())
}
