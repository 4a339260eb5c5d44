package failpoint

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

var (
	onRead  atomic.Pointer[func(b []byte)]
	onFrame atomic.Pointer[func(h frame.Header)]
)

// Set sets the functions called by Read and Frame. A nil function disables the call.
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

// Read is called with bytes that were read from a peer. No endpoint lock may be held.
func Read(b []byte) {
	if f := onRead.Load(); f != nil {
		(*f)(b)
	}
}

// Frame is called with each frame that is handled. The endpoint's lock must be held.
func Frame(h *frame.Header) {
	if f := onFrame.Load(); f != nil {
		(*f)(*h)
	}
}
