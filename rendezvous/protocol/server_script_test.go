package protocol_test

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A serverTest is a server and the bytes that it has sent to each connection. Its clients are bytes
// that a test writes by hand.
type serverTest struct {
	t      *testing.T
	server *protocol.Server
	sent   map[int][]byte
	closed map[int]bool
	events []protocol.Event
	last   int
}

func newServerTest(t *testing.T, cfg protocol.ServerConfig) *serverTest {
	t.Helper()
	s, err := protocol.NewServer(cfg)
	require.NoError(t, err)
	return &serverTest{t: t, server: s, sent: map[int][]byte{}, closed: map[int]bool{}}
}

// newStrictTest is a server without authentication.
func newStrictTest(t *testing.T, size int) *serverTest {
	t.Helper()
	return newServerTest(t, protocol.ServerConfig{Form: protocol.Strict, Size: size, Auth: open})
}

var open = protocol.Auth{None: true}

func (b *serverTest) take() {
	out, events := b.server.Take()
	for _, o := range out {
		require.False(b.t, b.closed[o.Conn], "connection %d was closed already", o.Conn)
		b.sent[o.Conn] = append(b.sent[o.Conn], o.Send...)
		b.closed[o.Conn] = o.Close
	}
	b.events = append(b.events, events...)
}

// connect begins a connection and sends each of the words.
func (b *serverTest) connect(words ...[]byte) int {
	b.last++
	b.server.Connect(b.last)
	b.take()
	b.send(b.last, words...)
	return b.last
}

// send sends words to the server.
func (b *serverTest) send(id int, words ...[]byte) {
	for _, w := range words {
		b.server.Receive(id, w)
		b.take()
	}
}

func (b *serverTest) lost(id int, err error) {
	b.server.Lost(id, err)
	b.take()
}

func (b *serverTest) expire() {
	b.server.Expire()
	b.take()
}

// takeSent takes the bytes that were sent to a connection since the last call.
func (b *serverTest) takeSent(id int) []byte {
	h := b.sent[id]
	delete(b.sent, id)
	return h
}

// requireSent requires that exactly these bytes were sent to a connection.
func (b *serverTest) requireSent(id int, words ...[]byte) {
	b.t.Helper()
	require.Equal(b.t, hex.EncodeToString(join(words...)), hex.EncodeToString(b.takeSent(id)), "to connection %d", id)
}

// joinClients connects clients that join, with the ranks 0 to size-1; they have received that all
// have joined.
func (b *serverTest) joinClients(size int) []int {
	b.t.Helper()
	ids := make([]int, size)
	for i := range ids {
		ids[i] = b.connect(rank(i))
	}
	for _, id := range ids {
		b.requireSent(id, command("IMPI", i32(size)))
	}
	return ids
}

// startClients runs until the startup is complete.
func (b *serverTest) startClients(size int) []int {
	b.t.Helper()
	ids := b.joinClients(size)
	for _, id := range ids {
		b.send(id, command("DONE"))
	}
	for _, id := range ids {
		b.requireSent(id, command("DONE"))
	}
	return ids
}

// requireRefused requires that a connection was closed, that nothing was sent to it, and that the
// server continues; it returns the reason.
func (b *serverTest) requireRefused(id int) error {
	b.t.Helper()
	require.True(b.t, b.closed[id])
	b.requireSent(id)
	over, _ := b.server.Over()
	require.False(b.t, over)
	e := b.events[len(b.events)-1]
	require.Equal(b.t, protocol.Refused, e.Kind)
	return e.Err
}

// requireAborted requires that the server has ended and closed everything; it returns the reason.
func (b *serverTest) requireAborted(ids ...int) error {
	b.t.Helper()
	over, err := b.server.Over()
	require.True(b.t, over)
	for _, id := range ids {
		require.True(b.t, b.closed[id], "connection %d", id)
	}
	return err
}

func join(words ...[]byte) (all []byte) {
	for _, w := range words {
		all = append(all, w...)
	}
	return all
}

// command is a command by its name, written down apart from the code that is tested.
func command(name string, payload ...[]byte) []byte {
	p := join(payload...)
	return join([]byte(name), i32(len(p)), p)
}

func i32(values ...int) (b []byte) {
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, uint32(int32(v)))
	}
	return b
}

func rank(r int) []byte { return command("IMPI", i32(r)) }

func coll(label int, data ...byte) []byte { return command("COLL", i32(label), data) }

// set returns the message of a strict server for a label.
func set(label int, mask uint32, data string) []byte {
	return command("COLL", i32(label, int(int32(mask))), []byte(data))
}

func TestTheTableItself(t *testing.T) {
	require.Equal(t, "434f4c4c 00000008 00001100 00000003", strings.Join([]string{
		hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[:4]), hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[4:8]),
		hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[8:12]), hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[12:]),
	}, " "))
}
