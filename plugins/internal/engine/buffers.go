package engine

import (
	"sync"
	"unsafe"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// roomBuffers has the buffers of messages longer than an envelope that nobody uses, by size class, each as a pointer to its first
// byte: a slice in an interface would be allocated. Buffers in use are accounted for by who reserved the room. These belong to the
// garbage collector, so that a burst does not keep memory for ever.
var roomBuffers [na.RoomClasses]sync.Pool

// newRoomBuffer returns a buffer of a size class, with anything in it.
func newRoomBuffer(class int) []byte {
	n := na.RoomBytes(class)
	if first, ok := roomBuffers[class-1].Get().(*byte); ok {
		return unsafe.Slice(first, n)
	}
	return make([]byte, n)
}

// freeRoomBuffer takes back what newRoomBuffer returned.
func freeRoomBuffer(b []byte) {
	roomBuffers[na.RoomClass(len(b))-1].Put(unsafe.SliceData(b))
}
