package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// The labels of Exchange. A program's own begin at LabelUser and come after Exchange's, or are submitted instead.
const (
	LabelAddr     protocol.Label = 0x10000 // the text of an address
	LabelFeatures protocol.Label = 0x10100 // 8 bytes, a bit for each feature
	LabelGER      protocol.Label = 0x10200 // 4 bytes: the guaranteed envelopes that the member offers
	LabelName     protocol.Label = 0x10300 // text for people
	LabelUser     protocol.Label = 0x1000000
)

// An Info is what a member tells the others.
type Info struct {
	Addr     string // where it can be called
	Features uint64 // what it can do, a bit for each feature; the program decides what they mean
	GER      uint32 // how many envelopes it guarantees each peer; 0: it does not say
	Name     string // for people: a host and a process, for instance
}

// A World is what all members have told, and what follows from it. It is the same for every member.
type World struct {
	Members  []Info // by rank
	Features uint64 // those that all have
	GER      uint32 // the smallest of those who say; 0 if nobody does
}

// Exchange tells the others about this member, says that it is done, and returns when the startup is complete. If ctx ends
// first the member is closed. It is for the native form.
func (m *Member) Exchange(ctx context.Context, info Info) (*World, error) {
	if m.cfg.Form != protocol.Native {
		return nil, errors.New("rendezvous: Exchange is for the native form")
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
		{LabelFeatures, binary.BigEndian.AppendUint64(nil, info.Features), w.takeFeatures},
		{LabelGER, binary.BigEndian.AppendUint32(nil, info.GER), w.takeGER},
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

func (w *World) takeFeatures(rank int, part []byte) bool {
	if len(part) < 8 { // more is of a later release
		return false
	}
	w.Members[rank].Features = binary.BigEndian.Uint64(part)
	w.Features &= w.Members[rank].Features
	return true
}

func (w *World) takeGER(rank int, part []byte) bool {
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
