package udp

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// An offload determines which datagrams are sent as a train. A train is a single message consisting
// of several datagrams of the same size to the same peer, which the kernel or the network card
// splits (UDP GSO). UDP GRO does the reverse at the receiver. Retransmitted datagrams are sent
// individually, so that packets still arrive on paths where trains do not. If the system refuses a
// train, or if the number of retransmitted bytes reaches half of those sent in trains, the next
// trainPause datagrams are sent individually. An offload is safe for concurrent use.
type offload struct {
	pause       atomic.Int64 // number of datagrams to send individually before trains are tried again
	sent, again atomic.Int64 // bytes sent in trains, and bytes retransmitted, in the current period
}

const (
	maxTrain    = 64      // maximum number of datagrams in a train; older kernels refuse more (UDP_MAX_SEGMENTS)
	trainPeriod = 2 << 20 // length of a period, in bytes sent in trains
	trainPause  = 64 << 10
)

// trainLen returns the number of datagrams at the front of out to send as one message.
func (t *offload) trainLen(out []outboundDatagram) int {
	if t.pause.Load() > 0 {
		t.pause.Add(-1)
		return 1
	}
	first := &out[0]
	if first.again {
		t.again.Add(int64(len(first.b)))
	}
	n, total := 1, len(first.b)
	for ; n < min(len(out), maxTrain) && !first.again; n++ {
		d := &out[n]
		if d.to != first.to || d.via != first.via || d.again || len(d.b) > len(first.b) || total+len(d.b) > arq.MaxSize ||
			len(out[n-1].b) < len(first.b) {
			break
		}
		total += len(d.b)
	}
	if n == 1 {
		return 1
	}
	// Only the goroutine whose Add crosses the threshold ends the period.
	if sent := t.sent.Add(int64(total)); sent >= trainPeriod && sent-int64(total) < trainPeriod {
		if lost := t.again.Swap(0); 2*lost >= t.sent.Swap(0) {
			t.pause.Store(trainPause)
		}
	}
	return n
}

// onTrainRefused handles the system's error for a train, and reports whether to send its datagrams
// individually. It suspends trains only if the error shows that the system or the device cannot
// send them. If the system lacks buffer space, onTrainRefused returns false, because sending
// individual datagrams would also fail.
func (t *offload) onTrainRefused(err unix.Errno) bool {
	switch err {
	case unix.EAGAIN, unix.ENOBUFS:
		return false
	case unix.EINVAL, unix.EIO, unix.EOPNOTSUPP, unix.ENOPROTOOPT:
		t.pause.Store(trainPause)
	}
	return true
}

// A controlMessage is a buffer for a message's control data (cmsg(3)), which consists of the size
// of a train's datagrams and the message's local address.
type controlMessage [12]uint64 // aligned, and large enough for both

func (c *controlMessage) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c))
}

// append writes a control message after the first n bytes of c and returns the new length.
func (c *controlMessage) append(n, level, kind int, data []byte) int {
	b := c.bytes()[n:]
	clear(b[:unix.CmsgSpace(len(data))])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return n + unix.CmsgSpace(len(data))
}

// setSegment writes the control data of a message to be sent to c, and returns the length of the
// control data. size is the size of a train's datagrams, or 0 for a single datagram. If from is
// valid, it is the source address.
func (c *controlMessage) setSegment(size int, from netip.Addr, six bool) (n int) {
	if size > 0 {
		n = c.append(n, unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, uint16(size)))
	}
	switch {
	case !from.IsValid():
	case six:
		var info [20]byte // struct in6_pktinfo: the address, then the interface (0 is any)
		*(*[16]byte)(info[:]) = from.As16()
		n = c.append(n, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, info[:])
	default:
		// A struct in_pktinfo contains the interface (0 is any), the source address, and an address
		// that is ignored.
		var info [12]byte
		*(*[4]byte)(info[4:]) = from.As4()
		n = c.append(n, unix.IPPROTO_IP, unix.IP_PKTINFO, info[:])
	}
	return n
}

// parse decodes the first n bytes of the control data of a received message. size is the size of a
// train's datagrams, or 0 for a single datagram. at is the local address to which the message was
// sent.
func (c *controlMessage) parse(n int) (size int, at netip.Addr) {
	for b := c.bytes()[:n]; len(b) >= unix.CmsgLen(0); {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		end := int(h.Len)
		if end < unix.CmsgLen(0) || end > len(b) {
			break
		}
		data := b[unix.CmsgLen(0):end]
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			size = int(binary.NativeEndian.Uint32(data))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= 12:
			at = netip.AddrFrom4([4]byte(data[4:]))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= 20:
			at = netip.AddrFrom16([16]byte(data)).Unmap()
		}
		b = b[min(len(b), unix.CmsgSpace(len(data))):]
	}
	return size, at
}
