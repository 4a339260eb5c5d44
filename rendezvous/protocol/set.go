package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// A Label says what kind of part it is. Labels are positive.
type Label int32

func (l Label) String() string { return fmt.Sprintf("%#x", int32(l)) }

// A Mask says which clients have submitted a part: bit i of word w stands for rank 32w+i.
type Mask []uint32

// Has reports whether rank is in the mask.
func (m Mask) Has(rank int) bool {
	return rank >= 0 && rank/32 < len(m) && m[rank/32]>>(rank%32)&1 == 1
}

// Count returns how many ranks are in the mask.
func (m Mask) Count() (n int) {
	for _, w := range m {
		n += bits.OnesCount32(w)
	}
	return n
}

// words is the length of a mask for size clients.
func words(size int) int { return (size + 31) / 32 }

// A Set is what the server sends to all clients about one label.
type Set struct {
	Label Label
	Mask  Mask
	Data  []byte // the parts, in ascending order of rank
	// Lens has the length of each part, by rank, with -1 for a client that has submitted nothing. It is nil in the strict form,
	// which does not say where a part ends.
	Lens []int
}

// Parts cuts Data into the parts, by rank, with nil for a client that has submitted nothing. It returns nil if Lens is nil. The parts
// share the memory of Data.
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

const (
	Native Form = iota // any number of clients, lengths, reasons
	Strict             // IMPI 0.0
)

// MaxStrict is how many clients there can be in the strict form, whose mask has 32 bits.
const MaxStrict = 32

// MaxNative bounds the number of clients in the native form.
const MaxNative = 1 << 16

// nativeVersions is what a native client says when it joins: its newest version in the lower 16 bits, its oldest in the upper, 0 for the same.
func nativeVersions() int {
	if oldestNative == nativeVersion {
		return nativeVersion
	}
	return oldestNative<<16 | nativeVersion
}

// speaksNative reports whether a client that has said v speaks a version of this server.
func speaksNative(v int) bool {
	oldest, newest := v>>16&0xffff, v&0xffff
	if oldest == 0 {
		oldest = newest
	}
	return oldest <= nativeVersion && oldestNative <= newest && oldest <= newest
}

func (f Form) joinCode() Code {
	if f == Strict {
		return CodeIMPI
	}
	return CodeJoin
}

func (f Form) checkSize(size int) error {
	if most := f.maxSize(); size < 1 || size > most {
		return fmt.Errorf("rendezvous: %d clients, want 1 to %d", size, most)
	}
	return nil
}

func (f Form) maxSize() int {
	if f == Strict {
		return MaxStrict
	}
	return MaxNative
}

// join returns the payload by which a client joins; size is 0 if it does not know how many there are.
func (f Form) join(rank, size int) []byte {
	if f == Strict {
		return int32s(rank)
	}
	return int32s(nativeVersions(), rank, size)
}

// parseJoin returns the rank of a client that joins size others.
func (f Form) parseJoin(p []byte, size int) (rank int, err error) {
	switch {
	case len(p) < len(f.join(0, 0)), f == Strict && len(p) > len(f.join(0, 0)): // more is of a later release
		return -1, violation("%v with a length of %d", f.joinCode(), len(p))
	case f == Strict:
		return getInt32(p), nil
	}
	if v := getInt32(p); !speaksNative(v) {
		older := "client"
		if v&0xffff > nativeVersion {
			older = "server"
		}
		return -1, violation("no common version: the client has said %#x, the server speaks %d; upgrade the %s", v, nativeVersion, older)
	}
	if n := getInt32(p[8:]); n != 0 && n != size {
		return -1, fmt.Errorf("%w: it expects %d processes, there are %d", ErrRank, n, size)
	}
	return getInt32(p[4:]), nil
}

// overhead is the longest payload of a COLL to clients without its data.
func (f Form) overhead(size int) int {
	if f == Strict {
		return 8
	}
	return 4 + 4*words(size) + 4*size
}

// setPayload returns the payload of a COLL to size clients.
func (f Form) setPayload(set *pending, size int) []byte {
	mask := make(Mask, words(size))
	for _, p := range set.parts {
		mask[p.rank/32] |= 1 << (p.rank % 32)
	}
	b := make([]byte, 0, f.overhead(size)+set.bytes)
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

// parseSet reads the payload of a COLL to size clients. The set has memory of its own.
func (f Form) parseSet(p []byte, size int) (Set, error) {
	masks := words(size)
	if len(p) < 4+4*masks {
		return Set{}, violation("COLL with a length of %d", len(p))
	}
	s := Set{Label: Label(getInt32(p)), Mask: make(Mask, masks)}
	p = p[4:]
	for i := range s.Mask {
		s.Mask[i] = binary.BigEndian.Uint32(p[4*i:])
	}
	p = p[4*masks:]
	switch {
	case s.Label <= 0:
		return Set{}, violation("a set with label %v", s.Label)
	case s.Mask.Count() == 0:
		return Set{}, violation("label %v of nobody", s.Label)
	case size%32 != 0 && s.Mask[masks-1]>>(size%32) != 0:
		return Set{}, violation("label %v of ranks beyond %d", s.Label, size-1)
	}
	if f == Native {
		n := s.Mask.Count()
		if len(p) < 4*n {
			return Set{}, violation("label %v without the lengths of its parts", s.Label)
		}
		lens, data := p[:4*n], int64(len(p)-4*n)
		s.Lens = make([]int, size)
		for rank := range s.Lens {
			s.Lens[rank] = -1
			if s.Mask.Has(rank) {
				s.Lens[rank], lens = getInt32(lens), lens[4:]
				if data -= int64(s.Lens[rank]); s.Lens[rank] < 0 {
					return Set{}, violation("label %v with a part of %d bytes of rank %d", s.Label, s.Lens[rank], rank)
				}
			}
		}
		if data != 0 {
			return Set{}, violation("label %v, whose bytes and lengths differ by %d", s.Label, data)
		}
		p = p[4*n:]
	}
	s.Data = slices.Clone(p)
	return s, nil
}

// Limits bound what clients may make the server hold. Zero fields have the defaults.
type Limits struct {
	Part   int // the longest part, in bytes; default 1 MiB
	Set    int // all parts of one label, in bytes; default 32 MiB
	Labels int // labels of one client; default 256
	Total  int // what all clients submit from the beginning to the end, in bytes, with 64 for each part; default 64 MiB
}

// partOverhead is what a part counts in Limits.Total beside its bytes.
const partOverhead = 64

func (l *Limits) fill() error {
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
		// A COLL says its length in an int32; the mask and the lengths of the parts come before its data.
		if most := math.MaxInt32 - 8*MaxNative; *f.v < 0 || *f.v > most {
			return fmt.Errorf("rendezvous: limit %s is %d, want 1 to %d, or 0 for %d", f.name, *f.v, most, f.otherwise)
		}
	}
	return nil
}
