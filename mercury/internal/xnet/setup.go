package xnet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// SetupSize is the length of a set-up message as we send it. A peer's may be up to MaxSetup long.
const (
	SetupSize = setupHeader + rdmSize
	MaxSetup  = setupHeader + 256

	setupHeader  = 32
	rdmSize      = 8
	setupVersion = 3
)

// The kinds of set-up message.
const (
	Request = 0 // of who dials
	Accept  = 1 // the answer that makes a connection
	Refuse  = 6 // the answer that refuses one: there is another connection of the pair
)

// A Setup is the first message of each direction.
type Setup struct {
	Kind     uint8
	Version  uint8 // of the message protocol: 0, or 1 with rendezvous
	Features uint8
	Port     uint16 // on which the sender listens; an Accept repeats the Request's
	PID      uint32
	Swapped  bool // the sender's byte order differs from ours, in headers
}

// ErrRXM is the error of a set-up message of another protocol, libfabric's ofi_rxm over connections of tcp. Mercury before 2.3 asks for it,
// and libfabric before 1.18 has nothing else.
var ErrRXM = errors.New("xnet: the peer speaks the protocol of libfabric's provider ofi_rxm: it has Mercury older than 2.3 or libfabric older than 1.18, update it there")

// The parts of a set-up message of ofi_rxm: of a request 24 bytes, with the versions of its messages, and of a refusal 2 bytes.
const (
	rxmSize       = 24
	rxmRefuseSize = 2
	rxmVersion    = 1
	rxmControl    = 4
	rxmOperation  = 3
	rxmRefused    = 1 // ECONNREFUSED
)

// AppendRXMRefusal appends the message that refuses a request of ofi_rxm, in its words.
func AppendRXMRefusal(b []byte) []byte {
	b = append(b, setupVersion, Refuse, 0, rxmRefuseSize)
	b = append(b, make([]byte, 20)...)
	b = binary.LittleEndian.AppendUint64(b, 1)
	return append(b, rxmVersion, rxmRefused)
}

// isRXM reports whether a set-up message of kind, with part behind its header, is one of ofi_rxm.
func isRXM(kind uint8, part []byte) bool {
	switch kind {
	case Request:
		return len(part) == rxmSize && part[0] == rxmVersion && part[2] == rxmControl && part[3] == rxmOperation
	case Refuse:
		return len(part) == rxmRefuseSize && part[0] == rxmVersion
	}
	return false
}

// accepted marks a version other than 0 in an Accept.
const accepted = 0x80

// Append appends s to b.
func (s *Setup) Append(b []byte) []byte {
	version := s.Version
	if s.Kind == Accept && version != 0 {
		version |= accepted
	}
	b = append(b, setupVersion, s.Kind, 0, rdmSize)
	b = append(b, make([]byte, 20)...) // segment number, connection and message: not in use
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = append(b, version, s.Features)
	b = binary.BigEndian.AppendUint16(b, s.Port)
	return binary.BigEndian.AppendUint32(b, s.PID)
}

// SetupLen returns the length of the set-up message that begins with b, of which it needs 4 bytes. A refusal may have no second part.
func SetupLen(b []byte) (int, error) {
	if len(b) < 4 {
		return 0, errShort
	}
	if b[0] != setupVersion {
		return 0, fmt.Errorf("xnet: set-up version %d, want %d", b[0], setupVersion)
	}
	n := setupHeader + int(binary.BigEndian.Uint16(b[2:]))
	if n > MaxSetup {
		return 0, fmt.Errorf("xnet: a set-up message of %d bytes, want at most %d", n, MaxSetup)
	}
	return n, nil
}

// ParseSetup parses a whole set-up message. The error is ErrRXM for one of that protocol.
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
		return Setup{}, fmt.Errorf("xnet: a set-up message of kind %d", s.Kind)
	}
	if n < SetupSize {
		return Setup{}, errors.New("xnet: a set-up message without a port: the peer's libfabric is older than 1.18, or does not use tcp")
	}
	switch binary.LittleEndian.Uint64(b[24:]) {
	case 1:
	case 1 << 56:
		s.Swapped = true
	default:
		return Setup{}, errors.New("xnet: the set-up message does not show the sender's byte order")
	}
	s.Version, s.Features = b[32], b[33]
	if s.Kind == Accept {
		s.Version &^= accepted
	}
	s.Port, s.PID = binary.BigEndian.Uint16(b[34:]), binary.BigEndian.Uint32(b[36:])
	if s.Port == 0 {
		return Setup{}, errors.New("xnet: the peer says that it listens on port 0")
	}
	return s, nil
}

var errShort = errors.New("xnet: a message that is too short")
