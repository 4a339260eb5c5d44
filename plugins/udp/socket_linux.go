package udp

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/netroute"
	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A pollSocket is a socket whose calls do not wait; it is in the pollers of its contexts.
type pollSocket struct {
	shared *sharedSocket
	fd     int
	bound  netip.AddrPort
	six    bool
	ids    [256]carrier.PollID // by context

	trains offload
}

var (
	_ carrier.Pollable = (*pollSocket)(nil)
	_ carrier.Peeker   = (*pollSocket)(nil)
)

// batch is how many datagrams one system call takes in, or sends.
const batch = 32

// A messageVector is what the system is told of a batch, of trains or of single datagrams.
type messageVector struct {
	msgs   [batch]mmsghdr
	iovs   [batch]unix.Iovec
	names  [batch]unix.RawSockaddrInet6 // room for either kind
	ctls   [batch]controlMessage
	counts [batch]int // of the datagrams in each
}

// A batchReader is the room for a batch that comes in, 2 MiB: whoever reads has one for that long. The shared socket keeps nothing of what is in it.
type batchReader struct {
	in []inboundDatagram
	v  messageVector
}

// readers are those that nobody has.
var readers = make(chan *batchReader, max(4, runtime.GOMAXPROCS(0)))

func getReader() *batchReader {
	select {
	case r := <-readers:
		return r
	default:
	}
	r, slab := &batchReader{}, make([]byte, batch*arq.MaxSize)
	for i := range batch {
		r.v.setMessage(i, slab[i*arq.MaxSize:(i+1)*arq.MaxSize])
		r.v.msgs[i].hdr.Control = &r.v.ctls[i].bytes()[0]
	}
	return r
}

func (r *batchReader) put() {
	select {
	case readers <- r:
	default:
	}
}

// A mmsghdr is the system's struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// setMessage makes message i about b and its name.
func (v *messageVector) setMessage(i int, b []byte) {
	m := &v.msgs[i]
	v.iovs[i].Base = unsafe.SliceData(b)
	v.iovs[i].SetLen(len(b))
	m.hdr.Iov = &v.iovs[i]
	m.hdr.SetIovlen(1)
	m.hdr.Name = (*byte)(unsafe.Pointer(&v.names[i]))
	m.hdr.Namelen = unix.SizeofSockaddrInet6
}

// vectors are those of senders, without memory of the senders'.
var vectors = sync.Pool{New: func() any { return &messageVector{} }}

const mode = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// openPolled binds a socket; an address without an IP is every address of the machine.
func openPolled(where netip.AddrPort, d *sharedSocket) (socket, error) {
	s := &pollSocket{shared: d, six: !where.Addr().Is4()}
	var err error
	if s.six {
		s.fd, err = unix.Socket(unix.AF_INET6, mode, 0)
		s.six = err != unix.EAFNOSUPPORT || where.Addr().IsValid()
	}
	if !s.six {
		s.fd, err = unix.Socket(unix.AF_INET, mode, 0)
	}
	if err != nil {
		return nil, bindError(where, err)
	}
	if err := s.prepare(where); err != nil {
		_ = unix.Close(s.fd)
		return nil, bindError(where, err)
	}
	return s, nil
}

func (s *pollSocket) prepare(where netip.AddrPort) error {
	for _, size := range [...]int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, size, bufferSize)
	}
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	if s.six {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	switch all := !where.Addr().IsValid() || where.Addr().IsUnspecified(); { // then an answer has to leave from the address that was called
	case all && s.six: // of IPv4, too
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	case all:
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE) // what the path does not carry is lost, and found out
	if s.six {
		_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}
	if err := unix.Bind(s.fd, s.sockaddr(where)); err != nil {
		return err
	}
	sa, err := unix.Getsockname(s.fd)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		s.bound = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		s.bound = addrPort6(sa)
	}
	return err
}

func (s *pollSocket) localAddr() netip.AddrPort { return s.bound }

// bufferSize implements socket.
func (s *pollSocket) bufferSize() int {
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return bufferSize
	}
	return n
}

func (s *pollSocket) watch(c *contextCarrier) (err error) {
	s.ids[c.id], err = c.e.Poller().AddShared(s.fd, s)
	return err
}

func (s *pollSocket) unwatch(c *contextCarrier) { c.e.Poller().Remove(s.fd, s.ids[c.id]) }

// Ready implements carrier.Pollable.
func (s *pollSocket) Ready(_, failed bool) {
	if failed {
		s.takeErrors()
	}
	s.Peek()
}

func (s *pollSocket) takeErrors() {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	s.readErrors()
}

// Peek implements carrier.Peeker.
func (s *pollSocket) Peek() (came bool) {
	r := getReader()
	defer r.put()
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	for range 2 {
		n := s.read(r)
		came = came || n > 0
		s.shared.routeDatagrams(r.in)
		if raceflag.Enabled {
			for i := range n {
				poisonMemory(unsafe.Slice(r.v.iovs[i].Base, r.v.msgs[i].n))
			}
		}
		if n < batch {
			break
		}
	}
	return came
}

// read takes in a batch, and returns how many messages of the system it had.
func (s *pollSocket) read(r *batchReader) int {
	r.in = r.in[:0]
	v := &r.v
	for i := range v.msgs {
		h := &v.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(len(v.ctls[i].bytes()))
	}
	for {
		n, _, err := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&v.msgs)), batch, 0, 0, 0)
		if err == unix.EINTR || err == unix.ECONNREFUSED { // of a datagram that was sent
			continue
		}
		if err != 0 {
			return 0
		}
		for i := range int(n) {
			a := inboundDatagram{from: v.sourceOf(i)}
			size, at := v.ctls[i].parse(int(v.msgs[i].hdr.Controllen))
			a.via = s.shared.localAddrIndex(at)
			for b := unsafe.Slice(v.iovs[i].Base, v.msgs[i].n); ; b = b[size:] {
				if a.b = b; size > 0 && size < len(b) {
					a.b = b[:size]
				}
				if r.in = append(r.in, a); len(a.b) == len(b) {
					break
				}
			}
		}
		return int(n)
	}
}

// sourceOf returns who has sent message i.
func (v *messageVector) sourceOf(i int) netip.AddrPort {
	sa := &v.names[i]
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	}
	return netip.AddrPortFrom(netroute.WithZone(netip.AddrFrom16(sa.Addr).Unmap(), sa.Scope_id), port)
}

// setName says where message i goes.
func (s *pollSocket) setName(v *messageVector, i int, to netip.AddrPort) {
	sa := &v.names[i]
	*sa = unix.RawSockaddrInet6{Family: unix.AF_INET6}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:], to.Port())
	if s.six {
		sa.Addr, sa.Scope_id = to.Addr().As16(), netroute.ZoneIndex(to.Addr().Zone())
		return
	}
	sa.Family = unix.AF_INET
	if ip := to.Addr().Unmap(); ip.Is4() {
		(*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr = ip.As4()
	}
	v.msgs[i].hdr.Namelen = unix.SizeofSockaddrInet4
}

// readErrors empties the queue of errors, which are answers to datagrams that were sent.
func (s *pollSocket) readErrors() {
	var oob [256]byte
	refuse := func(to netip.AddrPort) {
		s.shared.forEachContext(func(c *contextCarrier) { c.onRefused(to) })
	}
	for {
		_, n, _, to, err := unix.Recvmsg(s.fd, nil, oob[:], unix.MSG_ERRQUEUE)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		if !isRefused(oob[:n]) {
			continue
		}
		switch sa := to.(type) {
		case *unix.SockaddrInet4:
			refuse(netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)))
		case *unix.SockaddrInet6:
			refuse(addrPort6(sa))
		}
	}
}

// isRefused reports whether control messages say that nobody receives at a port.
func isRefused(oob []byte) bool {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, m := range all {
		four := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		six := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (four || six) && len(m.Data) >= 4 { // a struct sock_extended_err begins with the error
			return unix.Errno(binary.NativeEndian.Uint32(m.Data)) == unix.ECONNREFUSED
		}
	}
	return false
}

// send implements socket.
func (s *pollSocket) send(o *outbox) {
	v := vectors.Get().(*messageVector)
	alone := 0 // of the next datagrams, which the system has refused as a train
	for out := o.list; len(out) > 0; {
		n, used := 0, 0
		for n < batch && used < len(out) {
			k := 1
			if used >= alone {
				k = s.trains.trainLen(out[used:])
			}
			s.loadTrain(v, n, out[used:used+k])
			n, used = n+1, used+k
		}
		used, alone = s.write(v, n, out[:used], o)
		out = out[used:]
	}
	clear(v.iovs[:])
	vectors.Put(v)
}

// loadTrain makes message i of a train of datagrams, which lie one behind the other in memory.
func (s *pollSocket) loadTrain(v *messageVector, i int, train []outboundDatagram) {
	first, last, h := train[0], train[len(train)-1], &v.msgs[i].hdr
	size, n := 0, len(first.b)
	if len(train) > 1 {
		size, n = n, n*(len(train)-1)+len(last.b)
	}
	v.counts[i] = len(train)
	v.setMessage(i, unsafe.Slice(unsafe.SliceData(first.b), n))
	s.setName(v, i, first.to)
	h.SetControllen(v.ctls[i].setSegment(size, s.shared.localAddr(first.via), s.six))
	if h.Control = nil; h.Controllen > 0 {
		h.Control = &v.ctls[i].bytes()[0]
	}
}

// write sends n messages, which are the datagrams of out, and returns how many of those it is done with, and how many of the next ones
// the system refuses as a train. An error is about the first message that was not sent, and that is lost; but one of an earlier datagram
// may come up first.
func (s *pollSocket) write(v *messageVector, n int, out []outboundDatagram, o *outbox) (done, alone int) {
	for i, again := 0, false; i < n; {
		sent, _, err := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&v.msgs[i])), uintptr(n-i), 0, 0, 0)
		if err == unix.EINTR {
			continue
		}
		if err != 0 && err != unix.EAGAIN && !again { // perhaps of an earlier datagram, and then it does not come twice
			again = true
			continue
		}
		again = false
		if err != 0 {
			if sent = 1; v.counts[i] > 1 && s.trains.onTrainRefused(err) {
				return done, v.counts[i]
			}
			if err != unix.ECONNREFUSED {
				o.noteFailure(out[done], err)
			}
		}
		for range sent {
			done, i = done+v.counts[i], i+1
		}
	}
	return done, 0
}

// retriesRefused implements socket.
func (s *pollSocket) retriesRefused() int { return 0 }

func (s *pollSocket) close() { _ = unix.Close(s.fd) }

func (s *pollSocket) sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if !s.six {
		sa := &unix.SockaddrInet4{Port: int(ap.Port())}
		if ip := ap.Addr().Unmap(); ip.Is4() {
			sa.Addr = ip.As4()
		}
		return sa
	}
	sa := &unix.SockaddrInet6{Port: int(ap.Port())}
	if ap.Addr().IsValid() {
		sa.Addr, sa.ZoneId = ap.Addr().As16(), netroute.ZoneIndex(ap.Addr().Zone())
	}
	return sa
}

// addrPort6 returns an address of the system with its zone.
func addrPort6(sa *unix.SockaddrInet6) netip.AddrPort {
	return netip.AddrPortFrom(netroute.WithZone(netip.AddrFrom16(sa.Addr).Unmap(), sa.ZoneId), uint16(sa.Port))
}
