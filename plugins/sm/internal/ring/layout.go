package ring

import (
	"sync/atomic"
	"unsafe"
)

const (
	// Inline is the largest payload that fits into a descriptor, in bytes.
	Inline = 96
	// Slots is how many slots an area has, and SlotSize how many bytes of each are used: the longest message, and more than a piece
	// of bulk data.
	Slots    = 64
	SlotSize = 65 << 10
	// BodyRoom is how many bytes of an area are behind the slots, for bodies that messages are about.
	BodyRoom = 16 << 20
	// AreaSize is the length of an area in bytes.
	AreaSize = Slots*slotStride + BodyRoom

	slotStride = 68 << 10  // whole pages, and not a power of two: slots use different lines of a cache
	bulkSlots  = 1<<16 - 1 // the set of those for bulk data: more under way would not stay in the caches
	blockSize  = 32 << 10  // bodies begin at multiples of it
	descSize   = 128       // two lines of the cache, which processors fetch in pairs
	page       = 4 << 10
	bulkDescs  = page / descSize
	align      = 64 // of bodies
	refSize    = 8  // where a body stands in the area, and its length
)

// Where things are in a segment. Words that are written at different times are 128 bytes apart.
const (
	offMagic    = 0
	offForm     = 8   // version of the layout 4 bytes, bytes of a descriptor 4
	offLength   = 16  // of the segment
	offTaken    = 128 // descriptors that the owner of the segment has taken of each of the peer's rings, modulo 2^32
	offBell     = 256 // not 0: the owner sleeps, and is woken when there is something for it. A new number for each sleep
	offWaits    = 264 // not 0: the owner waits for room
	offBulk     = page
	offMessages = offBulk + bulkDescs*descSize
)

// Where things are in a descriptor.
const (
	descCommit = 0 // number of the message 32 bits, kind 8, flags 7, length 17
	descOp     = 8
	descTag    = 16
	descCredit = 24
	descSlot   = 28
	descBody   = 32
)

const magic = 0x3130_4d53_5349_5551 // "QUISSM01" as bytes

// Geometry is what the size of a segment follows from: the envelopes that the peer guarantees to its writer, the bytes of each, and the version of
// the layout.
type Geometry struct {
	Envelopes, Eager int
	Version          uint16
}

// form is the word at offForm.
func (g Geometry) form() uint64 { return uint64(g.Version) | descSize<<32 }

// descs is how many descriptors the ring of messages has: two for each envelope, because each message can be withdrawn, and some for
// what needs no envelope.
func (g Geometry) descs() int { return roundUp((2*g.Envelopes+spare)*descSize, page) / descSize }

// bodies is the length of the bodies' ring: all envelopes full, wherever the first of them begins.
func (g Geometry) bodies() int { return roundUp((g.Envelopes+1)*roundUp(g.Eager, align), page) }

// Size is the length of a segment in bytes.
func (g Geometry) Size() int { return offMessages + g.descs()*descSize + g.bodies() }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// A memory is bytes that another process may read, or write.
type memory []byte

func (m memory) word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&m[off : off+8][0])) }

func (m memory) load(off int) uint64           { return atomic.LoadUint64(m.word(off)) }
func (m memory) store(off int, v uint64)       { atomic.StoreUint64(m.word(off), v) }
func (m memory) desc(base, index int) memory   { return m[base+index*descSize:][:descSize] }
func (m memory) slot(index, length int) []byte { return m[index*slotStride:][:length] }
func (m memory) block(at, length int) []byte   { return m[Slots*slotStride+at:][:length] }

// A Point is a place in the use of a ring at which a test may look, stop or die.
type Point uint8

// The points, in the order in which a message passes them.
const (
	Reserve  Point = iota // a descriptor is about to be taken for a message
	Write                 // its payload is about to be written
	Publish               // its commit word is about to be stored
	Doorbell              // the reader is about to be looked at: is it asleep?
	Consume               // a message is about to be read
	Release               // its room is about to be given back
	Arm                   // a reader has said that it sleeps, and is about to look once more
	Wait                  // a writer is about to say that it waits for room, and then to look once more
	Points
)

// Step, if not nil, is called at each point. Only tests set it, before there is any End.
var Step func(Point)

func step(p Point) {
	if Step != nil {
		Step(p)
	}
}
