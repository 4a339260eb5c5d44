package inmem

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// idleCore is a context that is not driven. It has the methods that an end calls outside of Poll.
type idleCore struct{ carrier.Core }

func (idleCore) PollSoon() {}

// TestWindow checks that the frames that wait for a peer that is not driven are bounded, and the
// sender is notified when there is room again.
func TestWindow(t *testing.T) {
	a, b := &end{port: &port{core: idleCore{}}}, &end{port: &port{core: idleCore{}}}
	a.peer, b.peer = b, a
	sent := 0
	for whole, _ := a.Room(); whole >= 0; whole, _ = a.Room() {
		require.LessOrEqual(t, sent, window)
		a.Frame(&carrier.Header{}, make([]byte, 1000))
		sent += 1000
	}
	require.GreaterOrEqual(t, sent, window)
	require.Empty(t, a.port.inbox)
	for range sent / 1000 {
		b.took(1000)
	}
	require.Len(t, a.port.inbox, 1, "notified once")
	require.Equal(t, room, a.port.inbox[0].kind)
	whole, piece := a.Room()
	require.Equal(t, []int{carrier.MaxWhole, carrier.PieceSize}, []int{whole, piece})
}
