package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// Labels used by Exchange. Labels from LabelUser upward are available to programs, which must submit them before
// Exchange calls Done, or instead of calling Exchange.
const (
	LabelAddr     protocol.Label = 0x10000 // text form of the address
	LabelFeatures protocol.Label = 0x10100 // 8 bytes, with one bit per feature
	LabelGER      protocol.Label = 0x10200 // 4 bytes, the number of guaranteed envelopes that the member offers
	LabelName     protocol.Label = 0x10300 // display name
	LabelUser     protocol.Label = 0x1000000
)

// An Info describes a member to the other members.
type Info struct {
	Addr     string // address for calls
	Features uint64 // bit set of the features that the member supports; the program defines the bits
	GER      uint32 // number of envelopes that the member guarantees to each peer; 0 if not specified
	Name     string // display name, such as host and process
}

// A World holds the Info of all members and the values that they have in common. It is the same at every member.
type World struct {
	Members  []Info // indexed by rank
	Features uint64 // features that all members support
	GER      uint32 // smallest GER specified by any member; 0 if none is specified
}

// Exchange submits info, calls Done and blocks until the startup is complete. It returns the Info of all members. If
// ctx is done first, Exchange closes the member. It requires the form protocol.Native.
func (m *Member) Exchange(ctx context.Context, info Info) (*World, error) {
	if m.cfg.Form != protocol.Native {
		return nil, errors.New("rendezvous: exchange requires the form protocol.Native")
	}
	w := &World{Members: make([]Info, m.Size()), Features: math.MaxUint64}
	var bad error
	for _, l := range []struct {
		label protocol.Label
		part  []byte
		take  func(rank int, part []byte) bool
	}{
		{LabelAddr, []byte(info.Addr), func(rank int, part []byte) bool {
			w.Members[rank].Addr = string(part)
			return true
		}},
		{LabelFeatures, binary.BigEndian.AppendUint64(nil, info.Features), w.setFeatures},
		{LabelGER, binary.BigEndian.AppendUint32(nil, info.GER), w.setGER},
		{LabelName, []byte(info.Name), func(rank int, part []byte) bool {
			w.Members[rank].Name = string(part)
			return true
		}},
	} {
		err := m.Collect(l.label, l.part, func(set protocol.Set, err error) {
			for rank, part := range set.Parts() {
				if part == nil || !l.take(rank, part) {
					bad = fmt.Errorf("rendezvous: label %v of rank %d is missing or wrong", l.label, rank)
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	if err := m.DoneWait(ctx); err != nil {
		return nil, err
	}
	return w, bad
}

// setFeatures decodes the features of a member. It returns false if they are invalid.
func (w *World) setFeatures(rank int, part []byte) bool {
	if len(part) < 8 { // a later release may send more
		return false
	}
	w.Members[rank].Features = binary.BigEndian.Uint64(part)
	w.Features &= w.Members[rank].Features
	return true
}

// setGER decodes the GER of a member. It returns false if it is invalid.
func (w *World) setGER(rank int, part []byte) bool {
	if len(part) < 4 {
		return false
	}
	ger := binary.BigEndian.Uint32(part)
	w.Members[rank].GER = ger
	if ger > 0 && (w.GER == 0 || ger < w.GER) {
		w.GER = ger
	}
	return true
}
