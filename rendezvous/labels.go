package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// The labels of Exchange. The labels of a program begin at LabelUser, and are submitted before Exchange's Done or
// instead of Exchange.
const (
	LabelAddr     protocol.Label = 0x10000 // the text of an address
	LabelFeatures protocol.Label = 0x10100 // 8 bytes, a bit for each feature
	LabelGER      protocol.Label = 0x10200 // 4 bytes: the guaranteed envelopes that the member offers
	LabelName     protocol.Label = 0x10300 // a text to be displayed
	LabelUser     protocol.Label = 0x1000000
)

// An Info describes one member to the others.
type Info struct {
	Addr     string // address for calls
	Features uint64 // a bit for each feature that the member supports; the program defines the bits
	GER      uint32 // how many envelopes it guarantees each peer; 0: not specified
	Name     string // a text to be displayed, for example host and process
}

// A World is the Info of all members, and the values that they have in common. It is the same for every member.
type World struct {
	Members  []Info // by rank
	Features uint64 // features that all members support
	GER      uint32 // the smallest GER that is specified; 0 if none is
}

// Exchange submits info, calls Done, and blocks until the startup is complete. It returns the Info of all members. If
// ctx is done first the member is closed. It requires protocol.Native.
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

// setFeatures decodes the features of a member; it returns false if they are invalid.
func (w *World) setFeatures(rank int, part []byte) bool {
	if len(part) < 8 { // a later release may send more
		return false
	}
	w.Members[rank].Features = binary.BigEndian.Uint64(part)
	w.Features &= w.Members[rank].Features
	return true
}

// setGER decodes the GER of a member; it returns false if it is invalid.
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
