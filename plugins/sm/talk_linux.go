package sm

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// What two processes say to each other on their socket, each in one packet: a magic number, the version of the layout, a kind, and
// what the kind has; with descriptors.
//
//	dialler                               listener
//	   │ ─ hello, its bell ─────────────────► │
//	   │ ◄───── hello, its bell, its segment ─ │   or bye: refused
//	   │ ─ segment ─────────────────────────► │
//	   │ ◄─ area, when it is first needed ──► │
//	   │ ◄─ bye, with the reason ───────────► │   then the socket is closed
const (
	sayHello   = 1 // HELLO (package frame); one or two descriptors
	saySegment = 2 // one descriptor
	sayArea    = 3 // one descriptor
	sayBye     = 4 // code 1 byte, text
)

const (
	sayMagic  = 0x4d535351 // "QSSM"
	sayHead   = 8
	maxSaying = sayHead + frame.MaxHello
	maxText   = 512
)

// A saying is one packet that has arrived.
type saying struct {
	kind uint16
	body []byte
	fds  [2]int
	n    int // of fds
}

// descriptors is how many a packet of a kind has; a hello of a listener has one more.
func (s *saying) want(n int) error {
	if s.n != n {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("packet %d with %d descriptors, want %d", s.kind, s.n, n))
	}
	return nil
}

// take returns a descriptor, which is the caller's.
func (s *saying) take(i int) int {
	fd := s.fds[i]
	s.fds[i] = -1
	return fd
}

// drop closes the descriptors that nobody has taken.
func (s *saying) drop() {
	for _, fd := range s.fds[:s.n] {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// say sends a packet without waiting.
func say(fd int, kind uint16, body []byte, fds ...int) error {
	b := make([]byte, sayHead, sayHead+len(body))
	le := binary.LittleEndian
	le.PutUint32(b, sayMagic)
	le.PutUint16(b[4:], ring.Version)
	le.PutUint16(b[6:], kind)
	b = append(b, body...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, err := unix.SendmsgN(fd, b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

// hear receives a packet without waiting. ok is false when there is none; at the end of the socket the error is errEOF.
func hear(fd int, buf []byte) (s saying, ok bool, err error) {
	var oob [64]byte
	n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return s, false, nil
	case err != nil:
		return s, false, na.WithText(na.ErrPeerLost, "the socket to the peer: "+err.Error())
	}
	bad := s.rights(oob[:oobn])
	switch {
	case n == 0:
		bad = errEOF
	case bad != nil:
	case flags&unix.MSG_CTRUNC != 0:
		bad = na.WithText(na.ErrNoMemory, "the descriptors of a packet have not all come: they are too many, or this process can have no more")
	case flags&unix.MSG_TRUNC != 0 || n < sayHead:
		bad = na.WithText(na.ErrProtocol, fmt.Sprintf("a packet of %d bytes that is not whole", n))
	default:
		bad = s.parse(buf[:n])
	}
	if bad != nil {
		s.drop()
		return saying{}, false, bad
	}
	return s, true, nil
}

// rights takes the descriptors out of what came beside a packet.
func (s *saying) rights(oob []byte) error {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return na.WithText(na.ErrProtocol, "a packet with damaged control data")
	}
	for i := range all {
		fds, err := unix.ParseUnixRights(&all[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if s.n == len(s.fds) {
				_ = unix.Close(fd)
				err = na.WithText(na.ErrProtocol, "a packet with too many descriptors")
				continue
			}
			s.fds[s.n] = fd
			s.n++
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *saying) parse(b []byte) error {
	le := binary.LittleEndian
	if m := le.Uint32(b); m != sayMagic {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("a packet begins with %#x, want %#x", m, uint32(sayMagic)))
	}
	if v := le.Uint16(b[4:]); v != ring.Version {
		return na.WithText(na.ErrVersion, fmt.Sprintf("the peer has version %d of the layout of shared memory, this is version %d", v, ring.Version))
	}
	s.kind, s.body = le.Uint16(b[6:]), b[sayHead:]
	if s.kind < sayHello || s.kind > sayBye {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("a packet of unknown kind %d", s.kind))
	}
	return nil
}

// bye is the body of last words.
func bye(code na.Code, text string) []byte {
	return append([]byte{byte(code)}, text[:min(len(text), maxText)]...)
}

var errEOF = na.WithText(na.ErrPeerLost, "connection closed by peer")

// newBell returns the eventfd by which the peer wakes this process.
func newBell() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, na.WithText(na.ErrIO, "make a bell: "+err.Error())
	}
	return fd, nil
}

// checkBell reports why a descriptor of the peer is no bell: writing to anything else might wait.
func checkBell(fd int) error {
	var path [64]byte
	n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), path[:])
	if flags, ferr := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); ferr != nil || flags&unix.O_NONBLOCK == 0 {
		return na.WithText(na.ErrProtocol, "the bell of the peer waits")
	}
	if err == nil && string(path[:n]) != "anon_inode:[eventfd]" {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("the bell of the peer is %q, want an eventfd", path[:n]))
	}
	return nil
}

// ringBell wakes the peer.
func ringBell(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:])
}

// who returns the user and the process at the other end of a socket.
func who(fd int) (uid, pid int, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, 0, na.WithText(na.ErrPermission, "who is the peer: "+err.Error())
	}
	return int(cred.Uid), int(cred.Pid), nil
}

const soPeerPidfd = 77 // SO_PEERPIDFD, since Linux 6.5

// watchProcess returns a descriptor that becomes readable when the process at the other end of a socket is gone; -1 when there is none
// for it, and the end of the socket has to do.
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
