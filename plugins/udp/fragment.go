package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A packet keeps its number and its bytes when it is retransmitted, so it may then be larger than a
// path MTU that has decreased. Such a packet is sent in fragments that are small enough for every
// path. IP fragmentation is not used, because IPv6 routers do not fragment and IPv4 routers may
// drop fragments. The format of a fragment, with the size of each field in bytes, is:
//
//	0x80 1, 0 1, id 4, size of the datagram 2, offset 2    a part of the datagram
const (
	fragmentByte = 0x80 // first byte of a fragment and of no other datagram
	fragmentHead = 10
	fragmentSize = arq.BaseSize - fragmentHead
	maxPartial   = 16 // maximum number of incomplete datagrams
)

// splitOversized replaces each datagram in o.list that may exceed the path MTU with its fragments.
func (o *outbox) splitOversized() {
	o.fragment = false
	list := make([]outboundDatagram, 0, 2*len(o.list))
	for _, d := range o.list {
		if !d.tooLong() {
			list = append(list, d)
			continue
		}
		whole, id := d.b, uint32(randomUint64())
		for at := 0; at < len(whole); at += fragmentSize {
			b := append(make([]byte, 0, arq.BaseSize), fragmentByte, 0)
			b = binary.BigEndian.AppendUint32(b, id)
			b = binary.BigEndian.AppendUint16(b, uint16(len(whole)))
			b = binary.BigEndian.AppendUint16(b, uint16(at))
			d.b = append(b, whole[at:min(at+fragmentSize, len(whole))]...)
			list = append(list, d)
		}
	}
	o.list = list
}

// tooLong reports whether d must be sent in fragments.
func (d *outboundDatagram) tooLong() bool {
	return d.fragment && len(d.b) > arq.BaseSize && len(d.b) <= jumbo
}

// A partialDatagram is a datagram of which some but not all fragments have arrived.
type partialDatagram struct {
	from    netip.AddrPort
	id      uint32
	b       []byte
	missing uint16 // set of missing fragments, one bit each
}

// An assembler reassembles datagrams from fragments. Because fragments are not authenticated, an
// assembler holds at most maxPartial incomplete datagrams. To make room for another, it drops the
// oldest one. The sender retransmits the dropped datagram.
type assembler struct {
	partial []*partialDatagram // oldest first
}

// addFragment adds the fragment in a and reports whether it completes its datagram. If so,
// addFragment replaces the contents of a with the whole datagram.
func (x *assembler) addFragment(a *inboundDatagram) bool {
	if len(a.b) <= fragmentHead {
		return false
	}
	id, data := binary.BigEndian.Uint32(a.b[2:]), a.b[fragmentHead:]
	size, at := int(binary.BigEndian.Uint16(a.b[6:])), int(binary.BigEndian.Uint16(a.b[8:]))
	if size <= arq.BaseSize || size > jumbo || at >= size || at%fragmentSize != 0 || len(data) != min(fragmentSize, size-at) {
		return false
	}
	i := slices.IndexFunc(x.partial, func(p *partialDatagram) bool { return p.id == id && p.from == a.from })
	if i < 0 {
		if len(x.partial) == maxPartial {
			x.partial = slices.Delete(x.partial, 0, 1)
		}
		i = len(x.partial)
		x.partial = append(x.partial, &partialDatagram{from: a.from, id: id, b: make([]byte, size), missing: 1<<((size-1)/fragmentSize+1) - 1})
	}
	p := x.partial[i]
	bit := uint16(1) << (at / fragmentSize)
	if len(p.b) != size || p.missing&bit == 0 {
		return false
	}
	copy(p.b[at:], data)
	if p.missing &^= bit; p.missing != 0 {
		return false
	}
	x.partial = slices.Delete(x.partial, i, i+1)
	a.b = p.b
	return true
}
