package sm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// The kinds of packets sent on the socket between two processes. A packet consists of a head, a
// body, and file descriptors. The head contains a magic number, the oldest and newest memory layout
// versions that the sender supports, and the kind. The head, HELLO and bye are the same in all
// versions.
//
//	dialer                                listener
//	   │ ─ hello, its eventfd ──────────────► │
//	   │ ◄── hello, its segment, its eventfd ─ │   or bye: refused
//	   │ ─ segment ─────────────────────────► │
//	   │ ◄─ area, when it is first needed ──► │
//	   │ ◄─ want a chunk, chunk ────────────► │   for memory of the pool that is read directly
//	   │ ◄─ bye, with the reason ───────────► │   then the socket is closed
const (
	kindHello   = 1 // body is a HELLO (package frame); one or two descriptors
	kindSegment = 2 // one descriptor
	kindArea    = 3 // one descriptor
	kindBye     = 4 // body is a frame.Bye
	kindWant    = 5 // body is the number of a chunk in the receiver's pool
	kindChunk   = 6 // body is the number of a chunk and, if the chunk exists, its size; one descriptor if it exists

	firstOptional = 0x8000 // first of the optional kinds; a receiver skips a packet of an unknown optional kind
)

const (
	packetMagic = 0x4d535351 // "QSSM"
	packetHead  = 8
	maxPacket   = packetHead + frame.MaxHello
)

// A packet is a packet received from a peer. It owns the descriptors in fds that are not taken.
type packet struct {
	kind   uint16
	speaks frame.Range // layout versions that the sender supports
	body   []byte
	fds    [2]int
	n      int // number of descriptors in fds
}

// checkDescriptors returns an error unless p has exactly n descriptors.
func (p *packet) checkDescriptors(n int) error {
	if p.n != n {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("packet of kind %d has %d descriptors, want %d", p.kind, p.n, n))
	}
	return nil
}

// agree returns the layout version to use with the sender of p. The packet p must be a HELLO.
// dialled reports whether this process dialed the sender.
func (p *packet) agree(dialled bool) (version uint16, err error) {
	dialer, listener := p.speaks, frame.Range{Oldest: ring.OldestVersion, Newest: ring.Version}
	if dialled {
		dialer, listener = listener, dialer
	}
	return frame.Agree("shared memory", dialer, listener)
}

// takeDescriptor returns the i-th descriptor of p. The caller must close the descriptor.
func (p *packet) takeDescriptor(i int) int {
	fd := p.fds[i]
	p.fds[i] = -1
	return fd
}

// closeRest closes the descriptors that takeDescriptor has not returned.
func (p *packet) closeRest() {
	for _, fd := range p.fds[:p.n] {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// refuseSend, if not nil, is called by sendPacket before sending. If it returns an error,
// sendPacket returns that error without sending. It is set only by tests.
var refuseSend func(kind uint16, fds int) error

// isTransient reports whether a packet that the system refused to send with err can probably be
// sent a few milliseconds later. ETOOMANYREFS is transient. It means that the number of the user's
// descriptors in flight in sockets has reached RLIMIT_NOFILE (unix(7)), and the number decreases as
// soon as other processes read.
func isTransient(err error) bool {
	return err == unix.ETOOMANYREFS || err == unix.EAGAIN || err == unix.ENOBUFS || err == unix.EINTR
}

// sendPacket sends a packet without blocking. It returns the system call's error unchanged, so that
// the caller can pass the error to isTransient.
func sendPacket(fd int, kind uint16, body []byte, fds ...int) error {
	if refuseSend != nil {
		if err := refuseSend(kind, len(fds)); err != nil {
			return err
		}
	}
	b := make([]byte, packetHead, packetHead+len(body))
	le := binary.LittleEndian
	le.PutUint32(b, packetMagic)
	b[4], b[5] = ring.OldestVersion, ring.Version
	le.PutUint16(b[6:], kind)
	b = append(b, body...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, err := unix.SendmsgN(fd, b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

// errStarved is returned by recvPacket when the next packet has descriptors and the process has
// none free. The packet stays in the socket.
var errStarved = errors.New("no free descriptors")

// recvPacket receives a packet without blocking. ok is false if there is no packet. The error is
// errEOF if the socket is closed, and errStarved if the process lacks a free descriptor for the
// packet, which then stays in the socket.
func recvPacket(fd int, buf []byte) (p packet, ok bool, err error) {
	var oob [64]byte
	// Peek first, because the system would drop descriptors for which there is no room.
	const how = unix.MSG_DONTWAIT | unix.MSG_CMSG_CLOEXEC | unix.MSG_PEEK
	n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob[:], how)
	// The peer closed the socket without reading everything. This is reported once, before its
	// packets.
	if err == unix.ECONNRESET {
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob[:], how)
	}
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return p, false, nil
	case err != nil:
		return p, false, codes.WithText(codes.ErrPeerLost, "socket to the peer: "+err.Error())
	}
	bad := p.takeRights(oob[:oobn])
	switch {
	case n == 0:
		bad = errEOF
	case isSkipped(buf[:n]): // its length and its number of descriptors are defined by a later release
		p.closeRest()
		p.n, flags = 0, 0
		bad = p.parse(buf[:n])
	case bad != nil:
	case flags&unix.MSG_TRUNC != 0 || n < packetHead:
		bad = codes.WithText(codes.ErrProtocol, fmt.Sprintf("truncated packet of %d bytes", n))
	default:
		bad = p.parse(buf[:n])
	}
	if bad == nil && flags&unix.MSG_CTRUNC != 0 {
		if p.n == 0 && p.isTransient() {
			return packet{}, false, errStarved
		}
		bad = codes.WithText(codes.ErrNoMemory, "descriptors of a packet are missing: there are too many, or this process has too many open files")
	}
	_, _, _, _, _ = unix.Recvmsg(fd, nil, nil, unix.MSG_DONTWAIT) // remove the packet from the socket
	if bad != nil {
		p.closeRest()
		return packet{}, false, bad
	}
	return p, true, nil
}

// isTransient reports whether the descriptors of p are needed only briefly. This is the case if p
// carries memory, because its descriptor is closed as soon as the memory is mapped.
func (p *packet) isTransient() bool {
	return p.kind == kindSegment || p.kind == kindArea || p.kind == kindChunk
}

// takeRights decodes a packet's control data into p.fds.
func (p *packet) takeRights(oob []byte) error {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return codes.WithText(codes.ErrProtocol, "malformed control data of a packet")
	}
	for i := range all {
		fds, err := unix.ParseUnixRights(&all[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if p.n == len(p.fds) {
				_ = unix.Close(fd)
				err = codes.WithText(codes.ErrProtocol, "packet has too many descriptors")
				continue
			}
			p.fds[p.n] = fd
			p.n++
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isSkipped reports whether b is a packet of an optional kind. Such a packet must be skipped,
// because optional kinds are defined only by later releases.
func isSkipped(b []byte) bool {
	le := binary.LittleEndian
	return len(b) >= packetHead && le.Uint32(b) == packetMagic && le.Uint16(b[6:]) >= firstOptional
}

func (p *packet) parse(b []byte) error {
	le := binary.LittleEndian
	if m := le.Uint32(b); m != packetMagic {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("packet begins with %#x, want %#x", m, uint32(packetMagic)))
	}
	p.speaks = frame.Range{Oldest: uint16(b[4]), Newest: uint16(b[5])}
	p.kind, p.body = le.Uint16(b[6:]), b[packetHead:]
	if p.kind < kindHello || p.kind > kindChunk && p.kind < firstOptional {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("packet of unknown kind %d", p.kind))
	}
	return nil
}

var errEOF = codes.WithText(codes.ErrPeerLost, "connection closed by peer")

// newBell returns a new eventfd with which the peer wakes this process.
func newBell() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, codes.WithText(codes.ErrIO, "create an eventfd: "+err.Error())
	}
	return fd, nil
}

// checkBell returns an error if a descriptor received from the peer is not a nonblocking eventfd.
// Writing to anything else might block.
func checkBell(fd int) error {
	var path [64]byte
	n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), path[:])
	if flags, ferr := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); ferr != nil || flags&unix.O_NONBLOCK == 0 {
		return codes.WithText(codes.ErrProtocol, "the eventfd of the peer is not nonblocking")
	}
	if err == nil && string(path[:n]) != "anon_inode:[eventfd]" {
		return codes.WithText(codes.ErrProtocol, fmt.Sprintf("descriptor of the peer is %q, want an eventfd", path[:n]))
	}
	return nil
}

// ringBell wakes the peer by writing to the peer's eventfd.
func ringBell(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:])
}

// peerCredentials returns the user ID and process ID at the other end of a socket.
func peerCredentials(fd int) (uid, pid int, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, 0, codes.WithText(codes.ErrPermission, "credentials of the peer: "+err.Error())
	}
	return int(cred.Uid), int(cred.Pid), nil
}

const soPeerPidfd = 77 // SO_PEERPIDFD, since Linux 6.5

// watchProcess returns a pidfd that becomes readable when the process at the other end of the
// socket exits. It returns -1 if the system cannot provide one. In that case only the closing of
// the socket indicates that the process has exited.
func watchProcess(fd, pid int) int {
	if p, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd); err == nil {
		_, _ = unix.FcntlInt(uintptr(p), unix.F_SETFD, unix.FD_CLOEXEC)
		return p
	}
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	return p
}
