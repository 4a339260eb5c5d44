package ring

import (
	"sync/atomic"
	"unsafe"
)

const (
	// Inline is the maximum payload that fits in a descriptor, in bytes.
	Inline = 96
	// Slots is the number of slots in an area. SlotSize is the number of bytes used in each, which
	// is the size of the longest message and more than that of a piece of bulk data.
	Slots    = 64
	SlotSize = 65 << 10
	// BodyRoom is the size in bytes of the room after the slots, which is for bodies that are
	// written before their messages.
	BodyRoom = 16 << 20
	// AreaSize is the size of an area in bytes.
	AreaSize = Slots*slotStride + BodyRoom

	slotStride = 68 << 10  // a multiple of the page size but not a power of two, so that slots use different cache sets
	bulkSlots  = 1<<16 - 1 // set of the slots for bulk data, one bit each; the data in more slots would not stay in the CPU caches
	blockSize  = 32 << 10  // bodies in the room after the slots begin at multiples of blockSize
	descSize   = 128       // two cache lines, because processors prefetch lines in pairs
	page       = 4 << 10
	bulkDescs  = page / descSize
	align      = 64 // alignment of bodies in the ring of bodies
	refSize    = 8  // size of a reference to a body in the area: its offset and length
)

// Offsets in a segment. Words that are written at different times are 128 bytes apart.
const (
	offMagic    = 0
	offForm     = 8   // layout version (4 bytes), descriptor size (4 bytes)
	offLength   = 16  // length of the segment
	offTaken    = 128 // numbers of messages that the owner has taken from the peer's two rings, modulo 2^32
	offBell     = 256 // nonzero if the owner is sleeping and must be woken; the number differs for each sleep
	offWaits    = 264 // nonzero if the owner is waiting for room
	offBulk     = page
	offMessages = offBulk + bulkDescs*descSize
)

// Offsets in a descriptor.
const (
	descCommit = 0 // message number (32 bits), kind (8), flags (7), length (17)
	descOp     = 8
	descTag    = 16
	descCredit = 24
	descSlot   = 28
	descBody   = 32
)

const magic = 0x3130_4d53_5349_5551 // "QUISSM01" as bytes

// Geometry determines the size of a segment. It consists of the number of envelopes that the peer
// guarantees to the segment's writer, the size of each in bytes, and the layout version.
type Geometry struct {
	Envelopes, Eager int
	Version          uint16
}

// form returns the word to store at offForm.
func (g Geometry) form() uint64 { return uint64(g.Version) | descSize<<32 }

// descs returns the number of descriptors in the ring of messages. There are two for each envelope,
// because every message can be withdrawn, and spare more for frames that need no envelope.
func (g Geometry) descs() int { return roundUp((2*g.Envelopes+spare)*descSize, page) / descSize }

// bodies returns the size of the ring of bodies in bytes. The ring has room for all envelopes, and
// for one more because bodies do not wrap around.
func (g Geometry) bodies() int { return roundUp((g.Envelopes+1)*roundUp(g.Eager, align), page) }

// Size returns the length of a segment in bytes.
func (g Geometry) Size() int { return offMessages + g.descs()*descSize + g.bodies() }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// memory is a segment or an area, which is written by this process or by its peer.
type memory []byte

func (m memory) word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&m[off : off+8][0])) }

func (m memory) load(off int) uint64           { return atomic.LoadUint64(m.word(off)) }
func (m memory) store(off int, v uint64)       { atomic.StoreUint64(m.word(off), v) }
func (m memory) desc(base, index int) memory   { return m[base+index*descSize:][:descSize] }
func (m memory) slot(index, length int) []byte { return m[index*slotStride:][:length] }
func (m memory) block(at, length int) []byte   { return m[Slots*slotStride+at:][:length] }

// A Point is a step in the use of a ring at which a test may inspect, stop or kill the process.
type Point uint8

// The Points, in the order in which they occur for a message.
const (
	Reserve  Point = iota // before a descriptor is reserved for a message
	Write                 // before its payload is written
	Publish               // before its commit word is stored
	Doorbell              // before checking whether the reader is sleeping
	Consume               // before a message is read
	Release               // before its room is freed
	Arm                   // after a reader has announced that it sleeps, before it checks for messages once more
	Wait                  // before and after a writer announces that it is waiting for room
	Points
)

// Step, if not nil, is called at each Point. It is set only by tests, before they create an End.
var Step func(Point)

func step(p Point) {
	if Step != nil {
		Step(p)
	}
}
