package na

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

// messageForms specifies the versions of the headers that the layer above na writes into its
// messages. The zero value means that it writes none.
type messageForms struct {
	frame.Range
	convert func(msg []byte, version uint16)
}

// UseMessages sets the range of message versions that the layer above can read. The range is sent
// in HELLO, and a session is established only if both sides can read a common version or one of
// them has set none. UseMessages must be called before the first NewContext.
//
// The layer above passes unexpected messages to this package in the newest version. If the session
// uses an older one, convert rewrites the message in place when it is sent. convert runs with the
// endpoint's lock held, so it must not block or call this package. It may be called for the same
// message twice.
func (c *Class) UseMessages(oldest, newest uint16, convert func(msg []byte, version uint16)) {
	c.messages = messageForms{frame.Range{Oldest: oldest, Newest: newest}, convert}
}
