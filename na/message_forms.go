package na

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

// messageForms are the versions of the headers that the layer above na writes into its messages.
// The zero value means that there are none.
type messageForms struct {
	frame.Range
	convert func(msg []byte, version uint16)
}

// UseMessages sets the versions of messages that the layer above reads. The HELLO has them, and a
// session is made only if there is a version that both sides read, unless one side has set none.
// UseMessages is called before the first NewContext.
//
// Unexpected messages are passed to this package in the newest version. If the session uses an
// older one, convert rewrites the message in place when it is sent. convert runs with the
// endpoint's lock: it must not block, or call this package. It may get the same message twice.
func (c *Class) UseMessages(oldest, newest uint16, convert func(msg []byte, version uint16)) {
	c.messages = messageForms{frame.Range{Oldest: oldest, Newest: newest}, convert}
}
