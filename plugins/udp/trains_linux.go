package udp

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// An offload decides which datagrams leave together as a train: one message of several datagrams of
// one size to one peer, which the kernel or the network card cuts up (UDP GSO); UDP GRO does the
// reverse at the receiver. A datagram that is sent again goes alone, so that packets arrive where
// trains do not. If the system refuses a train, or if the bytes that are sent again reach half of
// those sent in trains, the next trainsRest datagrams go alone. It is safe for concurrent use.
type offload struct {
	pause       atomic.Int64 // the number of datagrams that go alone before trains are tried again
	sent, again atomic.Int64 // bytes sent in trains; bytes sent again in the same period
}

const (
	maxTrain    = 64      // limits the datagrams of a train: older kernels refuse more (UDP_MAX_SEGMENTS)
	trainPeriod = 2 << 20 // the length of a period, in bytes that are sent in trains
	trainPause  = 64 << 10
)

// trainLen returns how many of the datagrams at the front of out leave as one message.
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
	// one goroutine ends the period
	if sent := t.sent.Add(int64(total)); sent >= trainPeriod && sent-int64(total) < trainPeriod {
		if lost := t.again.Swap(0); 2*lost >= t.sent.Swap(0) {
			t.pause.Store(trainPause)
		}
	}
	return n
}

// onTrainRefused handles the system's error for a train, and reports whether to send its datagrams
// one by one. It stops trains for a while only if the error shows that the system or the device
// cannot send them. Without buffer space single datagrams would fail too.
func (t *offload) onTrainRefused(err unix.Errno) bool {
	switch err {
	case unix.EAGAIN, unix.ENOBUFS:
		return false
	case unix.EINVAL, unix.EIO, unix.EOPNOTSUPP, unix.ENOPROTOOPT:
		t.pause.Store(trainPause)
	}
	return true
}

// A controlMessage is the buffer of a message's control data (cmsg(3)): the size of the datagrams
// of a train, and the local address that a message came to or leaves from.
type controlMessage [12]uint64 // aligned, and large enough for both

func (c *controlMessage) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c))
}

// append adds a control message behind the first n bytes, and returns the new length.
func (c *controlMessage) append(n, level, kind int, data []byte) int {
	b := c.bytes()[n:]
	clear(b[:unix.CmsgSpace(len(data))])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return n + unix.CmsgSpace(len(data))
}

// setSegment writes the control data of a message to be sent, and returns its length. size is the
// size of the datagrams of a train, 0 for a single datagram. from is the local address to send
// from, if it is valid.
func (c *controlMessage) setSegment(size int, from netip.Addr, six bool) (n int) {
	if size > 0 {
		n = c.append(n, unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, uint16(size)))
	}
	switch {
	case !from.IsValid():
	case six:
		var info [20]byte // struct in6_pktinfo: the address, then the interface; 0 is any
		*(*[16]byte)(info[:]) = from.As16()
		n = c.append(n, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, info[:])
	default:
		// struct in_pktinfo: the interface (0 is any), the address to send from, and one that is
		// ignored
		var info [12]byte
		*(*[4]byte)(info[4:]) = from.As4()
		n = c.append(n, unix.IPPROTO_IP, unix.IP_PKTINFO, info[:])
	}
	return n
}

// parse decodes the first n bytes of the control data of a received message. size is the size of
// the datagrams of a train, 0 for a single datagram. at is the local address that the message came
// to.
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
