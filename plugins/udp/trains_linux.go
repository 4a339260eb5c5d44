package udp

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// Trains are how the system is spared datagrams: it takes several of one size to one peer as one, and gives several of one size from
// one peer as one. Every step on the way that can do so handles them together. A datagram that is sent again goes alone: so packets
// arrive where trains do not. If the system refuses a train, or as much has to be sent again as half of what went in trains, none are
// made for a while.
type offload struct {
	rest        atomic.Int64 // datagrams that go alone before trains are tried again
	sent, again atomic.Int64 // bytes in trains; bytes that were sent again meanwhile
}

const (
	mostCoupled  = 64      // datagrams of a train: older systems take no more
	trainsJudged = 2 << 20 // bytes are sent in trains before it is looked what became of them
	trainsRest   = 64 << 10
)

// trainLen returns how many of the datagrams at the front of out go as one message.
func (t *offload) trainLen(out []outboundDatagram) int {
	if t.rest.Load() > 0 {
		t.rest.Add(-1)
		return 1
	}
	first := &out[0]
	if first.again {
		t.again.Add(int64(len(first.b)))
	}
	n, total := 1, len(first.b)
	for ; n < min(len(out), mostCoupled) && !first.again; n++ {
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
	if sent := t.sent.Add(int64(total)); sent >= trainsJudged && sent-int64(total) < trainsJudged { // one judges, of those who come at once
		if lost := t.again.Swap(0); 2*lost >= t.sent.Swap(0) {
			t.rest.Store(trainsRest)
		}
	}
	return n
}

// onTrainRefused is told why the system did not take a train, and reports whether its datagrams are worth sending one by one. A train that is
// too long for the path says nothing about others; where there is no room, there is none for them either.
func (t *offload) onTrainRefused(err unix.Errno) bool {
	switch err {
	case unix.EAGAIN, unix.ENOBUFS:
		return false
	case unix.EINVAL, unix.EIO, unix.EOPNOTSUPP, unix.ENOPROTOOPT:
		t.rest.Store(trainsRest)
	}
	return true
}

// A controlMessage is what the system is told with a message, or tells: the size of the datagrams of a train, and which address of ours it
// came to or leaves from.
type controlMessage [12]uint64 // aligned, and large enough for both

func (c *controlMessage) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c))
}

// append adds one to the n bytes that are there, and returns how many there are then.
func (c *controlMessage) append(n, level, kind int, data []byte) int {
	b := c.bytes()[n:]
	clear(b[:unix.CmsgSpace(len(data))])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return n + unix.CmsgSpace(len(data))
}

// setSegment fills in what goes with a train of datagrams of size bytes, 0: with a single one, that leaves from an address, if it is valid.
// It returns the length.
func (c *controlMessage) setSegment(size int, from netip.Addr, six bool) (n int) {
	if size > 0 {
		n = c.append(n, unix.IPPROTO_UDP, unix.UDP_SEGMENT, binary.NativeEndian.AppendUint16(nil, uint16(size)))
	}
	switch {
	case !from.IsValid():
	case six:
		var info [20]byte // struct in6_pktinfo: the address, then the interface, any
		*(*[16]byte)(info[:]) = from.As16()
		n = c.append(n, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, info[:])
	default:
		var info [12]byte // struct in_pktinfo: the interface, any, the address to leave from, and one that is read only
		*(*[4]byte)(info[4:]) = from.As4()
		n = c.append(n, unix.IPPROTO_IP, unix.IP_PKTINFO, info[:])
	}
	return n
}

// parse is what the system says in n bytes: the size of the datagrams of a train, 0: it is a single one; and the address it came to.
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
