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
	// atOnce is how many connections are being made at a time, and waiting how many say nothing more, or have half closed.
	atOnce, waiting = 8, 48
)

// inputs are what comes to any port.
func inputs() [][]byte {
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

// Send dials again and again, and sends the beginnings of what any stranger sends and of sessions, which are recorded ones: each of 1 to 64
// bytes, and each that ends with one of the packets, or short of it by a byte. An error of a write is the listener's answer; dial
// must succeed. It returns once all have been sent, with every connection closed.
func Send(t testing.TB, dial func() (net.Conn, error), sessions ...[][]byte) {
	t.Helper()
	s := newSender(dial)
	for _, in := range append(inputs(), flat(sessions)...) {
		for n := 1; n <= min(len(in), longest); n++ {
			for how := range ends {
				s.begin([][]byte{in[:n]}, how)
			}
			if n > 1 {
				s.begin([][]byte{in[:n/2], in[n/2 : n]}, n%ends)
				s.begin([][]byte{in[:1], in[1:n]}, n%ends)
			}
		}
	}
	s.cut(sessions)
	s.end(t)
}

// SendSessions is Send of sessions alone, each ended in and after each of its packets: for connections that cost much, as those with TLS.
func SendSessions(t testing.TB, dial func() (net.Conn, error), sessions ...[][]byte) {
	t.Helper()
	s := newSender(dial)
	s.cut(sessions)
	s.end(t)
}

func flat(sessions [][][]byte) (all [][]byte) {
	for _, session := range sessions {
		all = append(all, session...)
	}
	return all
}

// How a connection ends.
const (
	closed = iota
	halfClosed
	silent
	ends
)

// A sender makes connections, and keeps those that have not ended.
type sender struct {
	dial   func() (net.Conn, error)
	places chan struct{} // one for each that is being made
	wait   sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	open []net.Conn
	err  error // of the first dial that failed
}

func newSender(dial func() (net.Conn, error)) *sender {
	return &sender{dial: dial, places: make(chan struct{}, atOnce)}
}

// begin has a connection send packets.
func (s *sender) begin(packets [][]byte, how int) {
	s.places <- struct{}{}
	s.wait.Go(func() {
		s.send(packets, how)
		<-s.places
	})
}

// cut sends the beginnings of sessions.
func (s *sender) cut(sessions [][][]byte) {
	for _, session := range sessions {
		for i, packet := range session {
			for _, n := range []int{1, len(packet) / 2, len(packet) - 1, len(packet)} {
				s.begin(append(slices.Clone(session[:i]), packet[:n]), (i+n)%ends)
			}
		}
	}
}

// end waits until all is sent, and closes what is open.
func (s *sender) end(t testing.TB) {
	t.Helper()
	s.wait.Wait()
	for _, nc := range s.open {
		_ = nc.Close()
	}
	require.NoError(t, s.err)
}

func (s *sender) send(packets [][]byte, how int) {
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
	if len(s.open) > waiting {
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

// Record returns a port between a client and the listener at target, and a function that closes it and returns what clients have sent,
// one packet for each read.
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
			wait.Go(func() { pass(server, client, keep) })
			wait.Go(func() { pass(client, server, func([]byte) {}) })
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

func pass(to, from net.Conn, keep func([]byte)) {
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
