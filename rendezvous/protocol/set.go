package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// A Label identifies a kind of part. Labels are positive.
type Label int32

// String returns the label in hexadecimal.
func (l Label) String() string { return fmt.Sprintf("%#x", int32(l)) }

// A Mask is a set of ranks. Bit i of word w represents rank 32w+i.
type Mask []uint32

// Has reports whether rank is in m.
func (m Mask) Has(rank int) bool {
	return rank >= 0 && rank/32 < len(m) && m[rank/32]>>(rank%32)&1 == 1
}

// Count returns the number of ranks in m.
func (m Mask) Count() (n int) {
	for _, w := range m {
		n += bits.OnesCount32(w)
	}
	return n
}

// maskWords returns the length of a Mask for size clients.
func maskWords(size int) int { return (size + 31) / 32 }

// A Set holds the parts of all clients for one label.
type Set struct {
	Label Label
	Mask  Mask   // ranks that have submitted a part
	Data  []byte // concatenation of the parts, in ascending order of rank
	// Lens is the length of each part by rank, or -1 for a client without a part. It is nil in the strict form, which
	// does not transmit lengths.
	Lens []int
}

// Parts returns the parts in Data by rank, with nil for each client without a part. It returns nil if Lens is nil.
// The parts share memory with Data.
func (s Set) Parts() [][]byte {
	if s.Lens == nil {
		return nil
	}
	parts, rest := make([][]byte, len(s.Lens)), s.Data
	for i, n := range s.Lens {
		if n >= 0 {
			parts[i], rest = rest[:n:n], rest[n:]
		}
	}
	return parts
}

// A Form is one of the two forms of the protocol.
type Form int

// Protocol forms.
const (
	Native Form = iota // up to MaxNative clients, with lengths of parts and reasons for failures
	Strict             // IMPI 0.0
)

// MaxStrict is the maximum number of clients in the strict form, whose mask has 32 bits.
const MaxStrict = 32

// MaxNative is the maximum number of clients in the native form.
const MaxNative = 1 << 16

// encodeVersions returns the versions in a native client's join command: the newest one in the lower 16 bits, and the
// oldest one in the upper 16 bits, or 0 there if they are the same.
func encodeVersions() int {
	if oldestNative == nativeVersion {
		return nativeVersion
	}
	return oldestNative<<16 | nativeVersion
}

// hasCommonVersion reports whether a client with the versions v in its join command supports a version of this
// server.
func hasCommonVersion(v int) bool {
	oldest, newest := v>>16&0xffff, v&0xffff
	if oldest == 0 {
		oldest = newest
	}
	return oldest <= nativeVersion && oldestNative <= newest && oldest <= newest
}

// joinCode returns the code of the join command.
func (f Form) joinCode() Code {
	if f == Strict {
		return CodeIMPI
	}
	return CodeJoin
}

// checkSize returns an error unless size is a valid number of clients.
func (f Form) checkSize(size int) error {
	if most := f.maxSize(); size < 1 || size > most {
		return fmt.Errorf("rendezvous: %d clients, want 1 to %d", size, most)
	}
	return nil
}

// maxSize returns the maximum number of clients in form f.
func (f Form) maxSize() int {
	if f == Strict {
		return MaxStrict
	}
	return MaxNative
}

// joinPayload returns the payload of a join command. size is 0 if the client does not know the number of clients.
func (f Form) joinPayload(rank, size int) []byte {
	if f == Strict {
		return encodeInt32s(rank)
	}
	return encodeInt32s(encodeVersions(), rank, size)
}

// parseJoin returns the rank in the payload of a join command, which was received by a server for size clients. It
// does not check that the rank is in range.
func (f Form) parseJoin(p []byte, size int) (rank int, err error) {
	switch {
	case len(p) < len(f.joinPayload(0, 0)), f == Strict && len(p) > len(f.joinPayload(0, 0)): // a later release may send more
		return -1, violationError("%v with a length of %d", f.joinCode(), len(p))
	case f == Strict:
		return decodeInt32(p), nil
	}
	if v := decodeInt32(p); !hasCommonVersion(v) {
		older := "client"
		if v&0xffff > nativeVersion {
			older = "server"
		}
		return -1, violationError("no common version: client supports %#x, server %d (upgrade the %s)", v, nativeVersion, older)
	}
	if n := decodeInt32(p[8:]); n != 0 && n != size {
		return -1, fmt.Errorf("%w: the client expects %d processes, the server %d", ErrRank, n, size)
	}
	return decodeInt32(p[4:]), nil
}

// setOverhead returns the maximum payload length of a COLL to size clients, excluding the parts.
func (f Form) setOverhead(size int) int {
	if f == Strict {
		return 8
	}
	return 4 + 4*maskWords(size) + 4*size
}

// setPayload returns the payload of a COLL to size clients.
func (f Form) setPayload(set *pendingSet, size int) []byte {
	mask := make(Mask, maskWords(size))
	for _, p := range set.parts {
		mask[p.rank/32] |= 1 << (p.rank % 32)
	}
	b := make([]byte, 0, f.setOverhead(size)+set.size)
	b = binary.BigEndian.AppendUint32(b, uint32(set.label))
	for _, w := range mask {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	if f == Native {
		for _, p := range set.parts {
			b = binary.BigEndian.AppendUint32(b, uint32(len(p.data)))
		}
	}
	for _, p := range set.parts {
		b = append(b, p.data...)
	}
	return b
}

// parseSet parses the payload of a COLL to size clients. The returned Set does not share memory with p.
func (f Form) parseSet(p []byte, size int) (Set, error) {
	masks := maskWords(size)
	if len(p) < 4+4*masks {
		return Set{}, violationError("COLL with a length of %d", len(p))
	}
	s := Set{Label: Label(decodeInt32(p)), Mask: make(Mask, masks)}
	p = p[4:]
	for i := range s.Mask {
		s.Mask[i] = binary.BigEndian.Uint32(p[4*i:])
	}
	p = p[4*masks:]
	switch {
	case s.Label <= 0:
		return Set{}, violationError("set with label %v", s.Label)
	case s.Mask.Count() == 0:
		return Set{}, violationError("label %v with an empty mask", s.Label)
	case size%32 != 0 && s.Mask[masks-1]>>(size%32) != 0:
		return Set{}, violationError("label %v with ranks beyond %d", s.Label, size-1)
	}
	if f == Native {
		n := s.Mask.Count()
		if len(p) < 4*n {
			return Set{}, violationError("label %v without the lengths of its parts", s.Label)
		}
		lens, data := p[:4*n], int64(len(p)-4*n)
		s.Lens = make([]int, size)
		for rank := range s.Lens {
			s.Lens[rank] = -1
			if s.Mask.Has(rank) {
				s.Lens[rank], lens = decodeInt32(lens), lens[4:]
				data -= int64(s.Lens[rank])
				if s.Lens[rank] < 0 {
					return Set{}, violationError("label %v with a part of %d bytes of rank %d", s.Label, s.Lens[rank], rank)
				}
			}
		}
		if data != 0 {
			return Set{}, violationError("label %v: bytes and lengths differ by %d", s.Label, data)
		}
		p = p[4*n:]
	}
	s.Data = slices.Clone(p)
	return s, nil
}

// Limits limits the parts that clients submit. A zero field means its default.
type Limits struct {
	Part   int // bytes of one part; default 1 MiB
	Set    int // bytes of all parts of one label; default 32 MiB
	Labels int // labels of one client; default 256
	Total  int // bytes of all parts of all labels, plus 64 for each part; default 64 MiB
}

// partOverhead is the number of bytes counted in Limits.Total for each part in addition to its data.
const partOverhead = 64

// setDefaults sets zero fields to their defaults and validates the others.
func (l *Limits) setDefaults() error {
	for _, f := range []struct {
		name      string
		v         *int
		otherwise int
	}{
		{"Part", &l.Part, 1 << 20}, {"Set", &l.Set, 32 << 20}, {"Labels", &l.Labels, 256}, {"Total", &l.Total, 64 << 20},
	} {
		if *f.v == 0 {
			*f.v = f.otherwise
		}
		// The length of a COLL is an int32 and includes the mask and the lengths of the parts.
		if most := math.MaxInt32 - 8*MaxNative; *f.v < 0 || *f.v > most {
			return fmt.Errorf("rendezvous: limit %s is %d, want 1 to %d, or 0 for %d", f.name, *f.v, most, f.otherwise)
		}
	}
	return nil
}
