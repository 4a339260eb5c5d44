package protocol_test

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// A table is a server and what it has said to each connection. Its clients are bytes that a test writes by hand.
type table struct {
	t      *testing.T
	server *protocol.Server
	said   map[int][]byte
	closed map[int]bool
	events []protocol.Event
	last   int
}

func newTable(t *testing.T, cfg protocol.ServerConfig) *table {
	t.Helper()
	s, err := protocol.NewServer(cfg)
	require.NoError(t, err)
	return &table{t: t, server: s, said: map[int][]byte{}, closed: map[int]bool{}}
}

// strict is a server that asks nobody who it is.
func strict(t *testing.T, size int) *table {
	t.Helper()
	return newTable(t, protocol.ServerConfig{Form: protocol.Strict, Size: size, Auth: open})
}

var open = protocol.Auth{None: true}

func (b *table) take() {
	out, events := b.server.Take()
	for _, o := range out {
		require.False(b.t, b.closed[o.Conn], "connection %d was closed already", o.Conn)
		b.said[o.Conn] = append(b.said[o.Conn], o.Send...)
		b.closed[o.Conn] = o.Close
	}
	b.events = append(b.events, events...)
}

// connect begins a connection and says each of the words.
func (b *table) connect(words ...[]byte) int {
	b.last++
	b.server.Connect(b.last)
	b.take()
	b.say(b.last, words...)
	return b.last
}

// say sends words to the server.
func (b *table) say(id int, words ...[]byte) {
	for _, w := range words {
		b.server.Receive(id, w)
		b.take()
	}
}

func (b *table) lost(id int, err error) {
	b.server.Lost(id, err)
	b.take()
}

func (b *table) expire() {
	b.server.Expire()
	b.take()
}

// heard takes what a connection was told since the last call.
func (b *table) heard(id int) []byte {
	h := b.said[id]
	delete(b.said, id)
	return h
}

// hears requires that a connection was told exactly this.
func (b *table) hears(id int, words ...[]byte) {
	b.t.Helper()
	require.Equal(b.t, hex.EncodeToString(join(words...)), hex.EncodeToString(b.heard(id)), "to connection %d", id)
}

// joined connects clients that join, with the ranks 0 to size-1; they have been told that all are there.
func (b *table) joined(size int) []int {
	b.t.Helper()
	ids := make([]int, size)
	for i := range ids {
		ids[i] = b.connect(rank(i))
	}
	for _, id := range ids {
		b.hears(id, command("IMPI", i32(size)))
	}
	return ids
}

// started goes on to where the startup is complete.
func (b *table) started(size int) []int {
	b.t.Helper()
	ids := b.joined(size)
	for _, id := range ids {
		b.say(id, command("DONE"))
	}
	for _, id := range ids {
		b.hears(id, command("DONE"))
	}
	return ids
}

// refuses requires that a connection was closed, that it was told nothing, and that the server goes on; it returns why.
func (b *table) refuses(id int) error {
	b.t.Helper()
	require.True(b.t, b.closed[id])
	b.hears(id)
	over, _ := b.server.Over()
	require.False(b.t, over)
	e := b.events[len(b.events)-1]
	require.Equal(b.t, protocol.Refused, e.Kind)
	return e.Err
}

// aborted requires that the server has ended and closed everything; it returns why.
func (b *table) aborted(ids ...int) error {
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

// set is what a strict server says about a label.
func set(label int, mask uint32, data string) []byte {
	return command("COLL", i32(label, int(int32(mask))), []byte(data))
}

func TestTheTableItself(t *testing.T) {
	require.Equal(t, "434f4c4c 00000008 00001100 00000003", strings.Join([]string{
		hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[:4]), hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[4:8]),
		hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[8:12]), hex.EncodeToString(coll(0x1100, 0, 0, 0, 3)[12:]),
	}, " "))
}
