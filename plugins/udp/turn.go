package udp

// A bulkTurn limits the bytes of bulk data that are sent, or received, before the socket is read for
// other datagrams and callbacks may run. Few bytes keep messages from waiting, and many save system
// calls. The limit therefore falls to the minimum when a message arrives, and grows a little with
// each turn without one. It is not safe for concurrent use. The zero value has the minimum.
type bulkTurn struct{ more int }

const (
	turnBytes = 256 << 10 // maximum of a bulkTurn; the last datagram of a turn may exceed it
	turnLeast = 60 << 10  // minimum, which is one datagram to a peer on this machine
	turnStep  = 4 << 10   // growth for each turn
)

// bytes returns the limit for the next turn.
func (t *bulkTurn) bytes() int { return turnLeast + t.more }

// grow raises the limit after a turn without a message.
func (t *bulkTurn) grow() { t.more = min(t.more+turnStep, turnBytes-turnLeast) }

// reset lowers the limit to the minimum, because a message has arrived.
func (t *bulkTurn) reset() { t.more = 0 }
