package xnet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes in bytes of a set-up message: SetupSize when sent by this package, and at most MaxSetup when sent by a peer.
const (
	SetupSize = setupHeader + rdmSize
	MaxSetup  = setupHeader + 256

	setupHeader  = 32
	rdmSize      = 8
	setupVersion = 3
)

// Kinds of set-up message.
const (
	Request = 0 // first message sent by the dialing side
	Accept  = 1 // reply that accepts the connection
	Refuse  = 6 // reply that refuses the connection because the two processes already have another one
)

// A Setup is a set-up message, which is the first message in each direction.
type Setup struct {
	Kind     uint8
	Version  uint8 // version of the message protocol: 0, or 1 with rendezvous
	Features uint8
	Port     uint16 // listening port of the sender; in an Accept, a copy of that in the Request
	PID      uint32
	Swapped  bool // the sender's headers are not little-endian
}

// ErrRXM is returned by ParseSetup for a message of libfabric's ofi_rxm over tcp, which is a different protocol.
// Mercury before 2.3 uses it, and libfabric before 1.18 supports no other.
var ErrRXM = errors.New("xnet: peer uses the unsupported libfabric provider ofi_rxm: " +
	"update Mercury to 2.3 or later, and libfabric to 1.18 or later, at the peer")

// These constants describe the data in set-up messages of ofi_rxm: 24 bytes in a request, including the version of its
// messages, and 2 bytes in a refusal.
const (
	rxmSize       = 24
	rxmRefuseSize = 2
	rxmVersion    = 1
	rxmControl    = 4
	rxmOperation  = 3
	rxmRefused    = 1 // ECONNREFUSED
)

// AppendRXMRefusal appends the ofi_rxm message that refuses a request.
func AppendRXMRefusal(b []byte) []byte {
	b = append(b, setupVersion, Refuse, 0, rxmRefuseSize)
	b = append(b, make([]byte, 20)...)
	b = binary.LittleEndian.AppendUint64(b, 1)
	return append(b, rxmVersion, rxmRefused)
}

// isRXM reports whether a set-up message of the given kind belongs to ofi_rxm. part is the data that follows the header
// of the message.
func isRXM(kind uint8, part []byte) bool {
	switch kind {
	case Request:
		return len(part) == rxmSize && part[0] == rxmVersion && part[2] == rxmControl && part[3] == rxmOperation
	case Refuse:
		return len(part) == rxmRefuseSize && part[0] == rxmVersion
	}
	return false
}

// accepted is set in the version of an Accept if the version is not 0.
const accepted = 0x80

// Append appends s to b.
func (s *Setup) Append(b []byte) []byte {
	version := s.Version
	if s.Kind == Accept && version != 0 {
		version |= accepted
	}
	b = append(b, setupVersion, s.Kind, 0, rdmSize)
	b = append(b, make([]byte, 20)...) // unused: segment number, connection and message
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = append(b, version, s.Features)
	b = binary.BigEndian.AppendUint16(b, s.Port)
	return binary.BigEndian.AppendUint32(b, s.PID)
}

// SetupLen returns the length of the set-up message at the beginning of b. It returns an error if b has fewer than 4
// bytes.
func SetupLen(b []byte) (int, error) {
	if len(b) < 4 {
		return 0, errShort
	}
	if b[0] != setupVersion {
		return 0, fmt.Errorf("xnet: set-up version %d, want %d", b[0], setupVersion)
	}
	n := setupHeader + int(binary.BigEndian.Uint16(b[2:]))
	if n > MaxSetup {
		return 0, fmt.Errorf("xnet: set-up message of %d bytes, limit %d", n, MaxSetup)
	}
	return n, nil
}

// ParseSetup parses b, which must be a complete set-up message. The error is ErrRXM for a message of ofi_rxm.
func ParseSetup(b []byte) (Setup, error) {
	n, err := SetupLen(b)
	if err != nil {
		return Setup{}, err
	}
	if len(b) != n {
		return Setup{}, errShort
	}
	s := Setup{Kind: b[1]}
	if isRXM(s.Kind, b[setupHeader:]) {
		return Setup{}, ErrRXM
	}
	if s.Kind == Refuse {
		return s, nil
	}
	if s.Kind > Accept {
		return Setup{}, fmt.Errorf("xnet: unknown set-up message kind %d", s.Kind)
	}
	if n < SetupSize {
		return Setup{}, errors.New("xnet: set-up message without a port (libfabric before 1.18, or not tcp)")
	}
	switch binary.LittleEndian.Uint64(b[24:]) {
	case 1:
	case 1 << 56:
		s.Swapped = true
	default:
		return Setup{}, errors.New("xnet: set-up message with unknown byte order")
	}
	s.Version, s.Features = b[32], b[33]
	if s.Kind == Accept {
		s.Version &^= accepted
	}
	s.Port, s.PID = binary.BigEndian.Uint16(b[34:]), binary.BigEndian.Uint32(b[36:])
	if s.Port == 0 {
		return Setup{}, errors.New("xnet: set-up message with listening port 0")
	}
	return s, nil
}

var errShort = errors.New("xnet: message too short")
