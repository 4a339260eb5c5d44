package beginnings

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// longest is how many bytes of each input are sent at the most, one more each time.
	longest = 64
	// maxDials is how many connections are being made at a time, and maxWaiting how many send
	// nothing more, or have half closed.
	maxDials, maxWaiting = 8, 48
)

// foreignInputs are inputs of other protocols, which arrive at any port.
func foreignInputs() [][]byte {
	return [][]byte{
		make([]byte, longest),
		bytes.Repeat([]byte{0xff}, longest),
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\n\r\n"),
		clientHello(),
	}
}

// clientHello is the first message of a TLS client.
func clientHello() []byte {
	here, there := net.Pipe()
	defer here.Close()
	go func() { _ = tls.Client(here, &tls.Config{ServerName: "localhost"}).Handshake() }()
	b := make([]byte, longest)
	n, _ := io.ReadFull(there, b)
	_ = there.Close()
	return b[:n]
}

// Send dials repeatedly, and sends the beginnings of messages of other protocols and of recorded
// sessions: each of 1 to 64 bytes, and each that ends at the end of a packet, or one byte before
// it. A failed write is a reaction of the listener; dial must succeed. It returns when all were
// sent, with every connection closed.
func Send(t testing.TB, dial func() (net.Conn, error), sessions ...[][]byte) {
	t.Helper()
	s := newSender(dial)
	for _, in := range append(foreignInputs(), joinBytes(sessions)...) {
		for n := 1; n <= min(len(in), longest); n++ {
			for how := range connectionEnds {
				s.startConn([][]byte{in[:n]}, how)
			}
			if n > 1 {
				s.startConn([][]byte{in[:n/2], in[n/2 : n]}, n%connectionEnds)
				s.startConn([][]byte{in[:1], in[1:n]}, n%connectionEnds)
			}
		}
	}
	s.sendPrefixes(sessions)
	s.finish(t)
}

// SendSessions is Send of sessions alone, each ended in and after each of its packets: for
// connections that cost much, as those with TLS.
func SendSessions(t testing.TB, dial func() (net.Conn, error), sessions ...[][]byte) {
	t.Helper()
	s := newSender(dial)
	s.sendPrefixes(sessions)
	s.finish(t)
}

func joinBytes(sessions [][][]byte) (all [][]byte) {
	for _, session := range sessions {
		all = append(all, session...)
	}
	return all
}

// The ways in which a connection ends, and their number.
const (
	closed = iota
	halfClosed
	silent
	connectionEnds
)

// A sender makes connections, and keeps those that have not ended.
type sender struct {
	dial  func() (net.Conn, error)
	slots chan struct{} // holds an element for each dial in progress
	wait  sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	open []net.Conn
	err  error // the error of the first dial that failed
}

func newSender(dial func() (net.Conn, error)) *sender {
	return &sender{dial: dial, slots: make(chan struct{}, maxDials)}
}

// startConn sends packets on a connection of their own.
func (s *sender) startConn(packets [][]byte, how int) {
	s.slots <- struct{}{}
	s.wait.Go(func() {
		s.sendPackets(packets, how)
		<-s.slots
	})
}

// sendPrefixes sends the prefixes of sessions, each on a connection of its own.
func (s *sender) sendPrefixes(sessions [][][]byte) {
	for _, session := range sessions {
		for i, packet := range session {
			for _, n := range []int{1, len(packet) / 2, len(packet) - 1, len(packet)} {
				s.startConn(append(slices.Clone(session[:i]), packet[:n]), (i+n)%connectionEnds)
			}
		}
	}
}

// finish waits until all packets are sent, and closes the open connections.
func (s *sender) finish(t testing.TB) {
	t.Helper()
	s.wait.Wait()
	for _, nc := range s.open {
		_ = nc.Close()
	}
	require.NoError(t, s.err)
}

func (s *sender) sendPackets(packets [][]byte, how int) {
	nc, err := s.dial()
	if err != nil {
		s.mu.Lock()
		if s.err == nil {
			s.err = err
		}
		s.mu.Unlock()
		return
	}
	for _, b := range packets {
		if _, err = nc.Write(b); err != nil {
			break
		}
	}
	half, ok := nc.(interface{ CloseWrite() error })
	if how == closed || how == halfClosed && !ok {
		_ = nc.Close()
		return
	}
	if how == halfClosed {
		_ = half.CloseWrite()
	}
	s.mu.Lock()
	s.open = append(s.open, nc)
	if len(s.open) > maxWaiting {
		nc = s.open[0]
		s.open = s.open[1:]
	} else {
		nc = nil
	}
	s.mu.Unlock()
	if nc != nil {
		_ = nc.Close()
	}
}

// Record returns a proxy between a client and the listener at target, and a function that closes it
// and returns the bytes that clients have sent, one packet for each read.
func Record(t testing.TB, network, target string) (addr string, session func() [][]byte) {
	t.Helper()
	var mu sync.Mutex
	var got [][]byte
	keep := func(b []byte) {
		mu.Lock()
		got = append(got, slices.Clone(b))
		mu.Unlock()
	}
	l, err := net.Listen(network, "127.0.0.1:0")
	require.NoError(t, err)
	var wait sync.WaitGroup
	var pairs []net.Conn
	wait.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, target)
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			pairs = append(pairs, client, server)
			mu.Unlock()
			wait.Go(func() { copyAndRecord(server, client, keep) })
			wait.Go(func() { copyAndRecord(client, server, func([]byte) {}) })
		}
	})
	end := sync.OnceFunc(func() {
		_ = l.Close()
		mu.Lock()
		for _, nc := range pairs {
			_ = nc.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	t.Cleanup(end)
	return l.Addr().String(), func() [][]byte {
		end()
		return got
	}
}

func copyAndRecord(to, from net.Conn, keep func([]byte)) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			keep(b[:n])
			_, _ = to.Write(b[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}
