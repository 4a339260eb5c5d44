package na

import "github.com/quicksilver-rpc/quicksilver/internal/frame"

// messageForms is the versions of the headers that the layer above na writes into its messages. The zero value is of a layer that has none.
type messageForms struct {
	frame.Range
	convert func(msg []byte, version uint16)
}

// UseMessages says in which versions the layer above reads messages: HELLO has them, and a session in which both sides have said so is made
// only if there is one that both read. Unexpected messages are started in the newest. Where the session has an older one, convert
// rewrites the message in its place as it leaves, with the lock of the endpoint held: it does not block, and calls nothing of this package.
// It may have the same message twice. UseMessages is called before the first NewContext.
func (c *Class) UseMessages(oldest, newest uint16, convert func(msg []byte, version uint16)) {
	c.messages = messageForms{frame.Range{Oldest: oldest, Newest: newest}, convert}
}
