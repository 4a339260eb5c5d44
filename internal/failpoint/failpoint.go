package failpoint

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

var (
	onRead  atomic.Pointer[func(b []byte)]
	onFrame atomic.Pointer[func(h frame.Header)]
)

// Set sets the functions that Read and Frame call from now on; nil is none.
func Set(read func(b []byte), frame func(h frame.Header)) {
	onRead.Store(nil)
	onFrame.Store(nil)
	if read != nil {
		onRead.Store(&read)
	}
	if frame != nil {
		onFrame.Store(&frame)
	}
}

// Read is called with the bytes that have been read from a peer, with no lock of an endpoint held.
func Read(b []byte) {
	if f := onRead.Load(); f != nil {
		(*f)(b)
	}
}

// Frame is called with each frame that is handled, with the endpoint locked.
func Frame(h *frame.Header) {
	if f := onFrame.Load(); f != nil {
		(*f)(*h)
	}
}
