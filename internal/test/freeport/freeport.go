package freeport

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The ports that Addr chooses from lie below those that Linux (32768 to 60999), macOS and Windows
// (49152 to 65535) give to connections, and to listeners at port 0.
const (
	first = 10_000
	count = 22_000
)

// Addr returns a host:port of 127.0.0.1 that is free for TCP and UDP. The system gives the port to
// no socket that does not request it by number, so that a server that has ended finds it free when
// it starts again.
func Addr(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(count)))
		stream, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		packet, err := net.ListenPacket("udp", addr)
		_ = stream.Close()
		if err == nil {
			_ = packet.Close()
			return addr
		}
	}
	t.Fatalf("no port from %d to %d is free", first, first+count-1)
	return ""
}
