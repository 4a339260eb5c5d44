package impi

import (
	"encoding/binary"
	"fmt"
)

// PacketSize is the length of a packet header in bytes. Only DATA and DATASYNC packets have data after the header.
const PacketSize = 128

// A PacketType is the type of a packet (pk_type).
type PacketType uint32

// Packet types.
const (
	PacketData      PacketType = iota // a short message, or a part of a long one other than the first
	PacketDataSync                    // a first packet whose sender expects a SYNCACK
	PacketProtoAck                    // Ackmark more packets have been received
	PacketSyncAck                     // the message has been received
	PacketCancel                      // cancel request
	PacketCancelYes                   // cancel reply: the message has been destroyed
	PacketCancelNo                    // cancel reply: the message has been received
	PacketFini                        // the sending agent has no more messages
)

var packetNames = [...]string{"DATA", "DATASYNC", "PROTOACK", "SYNCACK", "CANCEL", "CANCELYES", "CANCELNO", "FINI"}

// String returns the name used in the IMPI draft, without its prefix.
func (t PacketType) String() string {
	if int64(t) < int64(len(packetNames)) {
		return packetNames[t]
	}
	return fmt.Sprintf("PacketType(%d)", uint32(t))
}

// hasData reports whether Packet.Len bytes follow the header. This depends only on the type, because LAM/MPI sets a
// length of 128 in SYNCACK, CANCELNO and FINI packets, which have no data.
func (t PacketType) hasData() bool { return t == PacketData || t == PacketDataSync }

// isCounted reports whether packets of type t count for flow control.
func (t PacketType) isCounted() bool { return t != PacketProtoAck && t != PacketFini }

// A Packet is a packet header (IMPI_Packet). Its fields are in wire order. On the wire, integers are big-endian.
type Packet struct {
	Type        PacketType // offset 0
	Len         uint32     // 4: bytes of data in this packet
	Src         Proc       // 8: process that sends the packet
	Dest        Proc       // 32
	SrcRequest  uint64     // 56: message number assigned by the sender
	DestRequest uint64     // 64: message number assigned by the receiver, in SYNCACK and subsequent packets
	MsgLen      uint64     // 72: bytes of data in the whole message
	Rank        int32      // 80: sender's rank in its communicator
	Tag         int32      // 84
	Context     uint64     // 88: communicator
	SeqNum      uint64     // 96
	Count       int64      // 104: number of elements of Datatype in the message; used only by the receiving program
	Datatype    uint64     // 112: opaque
	Reserved    uint64     // 120
}

// Append appends the 128-byte encoding of the header to dst and returns the extended slice.
func (p *Packet) Append(dst []byte) []byte {
	be := binary.BigEndian
	dst = be.AppendUint32(dst, uint32(p.Type))
	dst = be.AppendUint32(dst, p.Len)
	for _, proc := range []*Proc{&p.Src, &p.Dest} {
		dst = append(dst, proc.Host[:]...)
		dst = be.AppendUint64(dst, uint64(proc.PID))
	}
	dst = be.AppendUint64(dst, p.SrcRequest)
	dst = be.AppendUint64(dst, p.DestRequest)
	dst = be.AppendUint64(dst, p.MsgLen)
	dst = be.AppendUint32(dst, uint32(p.Rank))
	dst = be.AppendUint32(dst, uint32(p.Tag))
	dst = be.AppendUint64(dst, p.Context)
	dst = be.AppendUint64(dst, p.SeqNum)
	dst = be.AppendUint64(dst, uint64(p.Count))
	dst = be.AppendUint64(dst, p.Datatype)
	return be.AppendUint64(dst, p.Reserved)
}

// ParsePacket parses the header in the first 128 bytes of b. If b is shorter or the type is unknown, it returns an
// error that matches ErrProtocol. It does not validate the other fields, such as lengths.
func ParsePacket(b []byte) (Packet, error) {
	if len(b) < PacketSize {
		return Packet{}, fmt.Errorf("%w: a header of %d bytes, want %d", ErrProtocol, len(b), PacketSize)
	}
	be := binary.BigEndian
	p := Packet{
		Type:        PacketType(be.Uint32(b)),
		Len:         be.Uint32(b[4:]),
		Src:         parseProc(b[8:]),
		Dest:        parseProc(b[32:]),
		SrcRequest:  be.Uint64(b[56:]),
		DestRequest: be.Uint64(b[64:]),
		MsgLen:      be.Uint64(b[72:]),
		Rank:        int32(be.Uint32(b[80:])),
		Tag:         int32(be.Uint32(b[84:])),
		Context:     be.Uint64(b[88:]),
		SeqNum:      be.Uint64(b[96:]),
		Count:       int64(be.Uint64(b[104:])),
		Datatype:    be.Uint64(b[112:]),
		Reserved:    be.Uint64(b[120:]),
	}
	if p.Type > PacketFini {
		return Packet{}, fmt.Errorf("%w: unknown packet type %d", ErrProtocol, uint32(p.Type))
	}
	return p, nil
}

// parseProc parses the encoding of a Proc at the beginning of b.
func parseProc(b []byte) (p Proc) {
	copy(p.Host[:], b)
	p.PID = int64(binary.BigEndian.Uint64(b[16:]))
	return p
}
