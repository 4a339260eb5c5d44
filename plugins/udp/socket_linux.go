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

// A pollSocket is a nonblocking socket that the pollers of its contexts watch.
type pollSocket struct {
	shared *sharedSocket
	fd     int
	bound  netip.AddrPort
	six    bool                // whether the socket is IPv6; an IPv6 socket also carries IPv4
	ids    [256]carrier.PollID // indexed by context number

	trains offload
	bulk   bulkSocket
}

var (
	_ carrier.Pollable = (*pollSocket)(nil)
	_ carrier.Peeker   = (*pollSocket)(nil)
)

// batch is the maximum number of messages sent or received by one system call.
const batch = 32

// A messageVector holds the arguments of sendmmsg(2) or recvmmsg(2). Each message is a single
// datagram or a train, which is several datagrams that the system splits or has joined.
type messageVector struct {
	msgs   [batch]mmsghdr
	iovs   [batch]unix.Iovec
	names  [batch]unix.RawSockaddrInet6 // also large enough for an IPv4 address
	ctls   [batch]controlMessage
	counts [batch]int // number of datagrams in each message
}

// A batchReader holds the buffers, 2 MiB in total, that one recvmmsg(2) call fills. The goroutine
// that obtains it from getReader owns it until put is called. The shared socket retains no
// reference to its buffers.
type batchReader struct {
	in []inboundDatagram
	v  messageVector
}

// freeReaders is the free list of batchReaders.
var freeReaders = make(chan *batchReader, max(4, runtime.GOMAXPROCS(0)))

func getReader() *batchReader {
	select {
	case r := <-freeReaders:
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
	case freeReaders <- r:
	default:
	}
}

// An mmsghdr mirrors the struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// setMessage sets the data of message i to b and its address to v.names[i].
func (v *messageVector) setMessage(i int, b []byte) {
	m := &v.msgs[i]
	v.iovs[i].Base = unsafe.SliceData(b)
	v.iovs[i].SetLen(len(b))
	m.hdr.Iov = &v.iovs[i]
	m.hdr.SetIovlen(1)
	m.hdr.Name = (*byte)(unsafe.Pointer(&v.names[i]))
	m.hdr.Namelen = unix.SizeofSockaddrInet6
}

// sendVectors is a pool of messageVectors for sending. A vector in the pool holds no pointers to
// datagrams.
var sendVectors = sync.Pool{New: func() any { return &messageVector{} }}

const mode = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// openPolled opens a pollSocket and binds it to where. If where has no IP address, the socket is
// bound to all of the machine's addresses.
func openPolled(where netip.AddrPort, d *sharedSocket) (socket, error) {
	s := &pollSocket{shared: d, six: !where.Addr().Is4()}
	s.bulk = bulkSocket{s: s, fd: -1, size: localSize}
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
	if err := s.bind(where); err != nil {
		_ = unix.Close(s.fd)
		return nil, bindError(where, err)
	}
	return s, nil
}

// bind sets the options of the socket and binds it to where.
func (s *pollSocket) bind(where netip.AddrPort) error {
	s.setOptions(s.fd, where)
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

// setOptions sets the options of a socket that is about to be bound to where.
func (s *pollSocket) setOptions(fd int, where netip.AddrPort) {
	for _, size := range [...]int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, size, bufferSize)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	if s.six {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	// A socket bound to every address requests the destination address of each datagram, so that
	// replies can be sent from that address.
	switch all := !where.Addr().IsValid() || where.Addr().IsUnspecified(); {
	case all && s.six: // also reports the destination of IPv4 datagrams
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	case all:
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	// Set the DF bit and ignore the system's path MTU. The arq machine probes for the packet size
	// itself, and treats the loss of a probe as a sign that the probe was too large.
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	if s.six {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}
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
	if s.ids[c.id], err = c.e.Poller().AddShared(s.fd, s); err == nil && s.bulk.fd >= 0 {
		err = s.bulk.watch(c)
	}
	return err
}

func (s *pollSocket) unwatch(c *contextCarrier) {
	c.e.Poller().Remove(s.fd, s.ids[c.id])
	s.bulk.unwatch(c)
}

// Ready implements carrier.Pollable.
func (s *pollSocket) Ready(_, failed bool) {
	if failed {
		s.takeErrors(s.fd)
	}
	s.Peek()
}

// takeErrors handles the errors that fd, which is the socket or the bulk socket, reports.
func (s *pollSocket) takeErrors(fd int) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	s.readErrors(fd)
}

// Peek implements carrier.Peeker. It handles at most two batches. It returns after the first that
// contains anything but bulk data, and reads bulk data only once if a message has arrived before,
// because the leader may be about to run a callback.
func (s *pollSocket) Peek() (came bool) {
	r := getReader()
	defer r.put()
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	once := s.shared.hadMessage
	for left := 2 * batch; left > 0; {
		bulk, others, full := s.readBoth(r)
		came = came || bulk+others > 0
		if left -= bulk + others; !full || once && bulk > 0 || others > 0 && others < batch {
			break
		}
	}
	if s.shared.hasBulk && s.bulk.shouldOpen() {
		s.bulk.open()
	}
	return came
}

// readBoth reads and handles a batch of bulk data, if there is any, and a batch of other datagrams.
// It returns the number of messages in each, and full reports whether more may be waiting. Bulk
// data is read first but handled last. Datagrams that were sent before it are thereby handled
// before it, because the system delivered them earlier.
func (s *pollSocket) readBoth(r *batchReader) (bulk, others int, full bool) {
	var br *batchReader
	if s.bulk.active {
		br = getReader()
		defer br.put()
		bulk, full = s.bulk.read(br)
	}
	for range maxReads {
		n := s.read(r, s.fd, batch)
		others += n
		s.route(r, n)
		if n < batch {
			break
		}
		if bulk == 0 {
			full = true
			break
		}
	}
	if bulk > 0 {
		s.route(br, bulk)
	}
	return bulk, others, full
}

// maxReads is the maximum number of batches that are read before bulk data is handled.
const maxReads = 4

// route passes the datagrams of the n messages in r to their contexts.
func (s *pollSocket) route(r *batchReader, n int) {
	s.shared.routeDatagrams(r.in)
	if raceflag.Enabled {
		for i := range n {
			poisonMemory(unsafe.Slice(r.v.iovs[i].Base, r.v.msgs[i].n))
		}
	}
}

// hasInput implements socket.
func (s *pollSocket) hasInput() bool {
	p := unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
	var now unix.Timespec
	n, _, _ := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return n == 1
}

// read receives at most most messages from fd, which is the socket or the bulk socket, into r.in. It
// returns the number of messages received. A message is a train or a single datagram.
func (s *pollSocket) read(r *batchReader, fd, most int) int {
	r.in = r.in[:0]
	v := &r.v
	for i := range most {
		h := &v.msgs[i].hdr
		h.Namelen = unix.SizeofSockaddrInet6
		h.SetControllen(len(v.ctls[i].bytes()))
	}
	for {
		n, _, err := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&v.msgs)), uintptr(most), 0, 0, 0)
		// ECONNREFUSED reports the fate of a datagram sent earlier, so receive again.
		if err == unix.EINTR || err == unix.ECONNREFUSED {
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

// sourceOf returns the source address of message i.
func (v *messageVector) sourceOf(i int) netip.AddrPort {
	sa := &v.names[i]
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	}
	return netip.AddrPortFrom(netroute.WithZone(netip.AddrFrom16(sa.Addr).Unmap(), sa.Scope_id), port)
}

// setName sets the destination address of message i.
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

// readErrors drains the error queue of fd (IP_RECVERR) and passes port-unreachable errors to the
// contexts.
func (s *pollSocket) readErrors(fd int) {
	var oob [256]byte
	refuse := func(to netip.AddrPort) {
		s.shared.forEachContext(func(c *contextCarrier) { c.onRefused(to) })
	}
	for {
		_, n, _, to, err := unix.Recvmsg(fd, nil, oob[:], unix.MSG_ERRQUEUE)
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

// isRefused reports whether the control messages in oob contain ECONNREFUSED, which means that no
// socket is bound to the peer's port.
func isRefused(oob []byte) bool {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, m := range all {
		four := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR
		six := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if (four || six) && len(m.Data) >= 4 { // struct sock_extended_err begins with the error
			return unix.Errno(binary.NativeEndian.Uint32(m.Data)) == unix.ECONNREFUSED
		}
	}
	return false
}

// send implements socket.
func (s *pollSocket) send(o *outbox) {
	v := sendVectors.Get().(*messageVector)
	// alone is the number of datagrams that must be sent individually next, because the system
	// refused to send them as a train.
	alone := 0
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
	sendVectors.Put(v)
}

// loadTrain sets up message i to send a train of datagrams. The datagrams must be contiguous in
// memory.
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

// write sends the first n messages of v, which contain the datagrams in out. done is the number of
// datagrams that were sent or lost. alone is the number of datagrams after those that the system
// refused to send as a train. The system's error usually concerns the first unsent message, but may
// instead report an ICMP error for an earlier datagram. write therefore retries once after each
// error.
func (s *pollSocket) write(v *messageVector, n int, out []outboundDatagram, o *outbox) (done, alone int) {
	for i, again := 0, false; i < n; {
		sent, _, err := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&v.msgs[i])), uintptr(n-i), 0, 0, 0)
		if err == unix.EINTR {
			continue
		}
		// An error that concerns an earlier datagram is reported only once.
		if err != 0 && err != unix.EAGAIN && !again {
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

func (s *pollSocket) close() {
	s.bulk.close()
	_ = unix.Close(s.fd)
}

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

// addrPort6 converts sa to a netip.AddrPort, including its zone.
func addrPort6(sa *unix.SockaddrInet6) netip.AddrPort {
	return netip.AddrPortFrom(netroute.WithZone(netip.AddrFrom16(sa.Addr).Unmap(), sa.ZoneId), uint16(sa.Port))
}
