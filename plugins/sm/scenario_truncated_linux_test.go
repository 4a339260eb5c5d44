package sm

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// TestTruncatedMessages checks that no truncated packet of any kind ends a listener, nor does one behind a
// hello; others are served afterwards.
func TestTruncatedMessages(t *testing.T) {
	h := newRawHost(t, Options{})
	packet := func(kind uint16, body ...byte) []byte {
		b := binary.LittleEndian.AppendUint32(nil, packetMagic)
		b = append(b, ring.OldestVersion, ring.Version)
		return append(binary.LittleEndian.AppendUint16(b, kind), body...)
	}
	greeting := packet(kindHello, hello(nil)...)
	var sessions [][][]byte
	for kind := uint16(0); kind <= kindChunk+1; kind++ {
		sessions = append(sessions, [][]byte{greeting, packet(kind, make([]byte, 16)...)}, [][]byte{packet(kind, hello(nil)...)})
	}
	end := time.Now().Add(time.Minute)
	dial := func() (nc net.Conn, err error) {
		for {
			nc, err = net.Dial("unixpacket", h.path)
			if !errors.Is(err, unix.EAGAIN) || time.Now().After(end) { // else too many wait to be let in
				return nc, err
			}
			runtime.Gosched()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		beginnings.Send(t, dial, sessions...)
	}()
	h.until("all is sent", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})

	// The same behind the hello of a peer that has joined.
	for kind := uint16(0); kind <= kindChunk+1; kind++ {
		for n := range 17 {
			s := h.newRawPeer()
			s.greet()
			_, _ = unix.Write(s.fd, packet(kind, make([]byte, n)...))
			h.until("the host has read it", func() bool { _ = h.nctx.Progress(0); return true })
			s.leave()
		}
	}
	s := h.newRawPeer()
	s.greet()
	require.NotNil(t, s.end)
}
