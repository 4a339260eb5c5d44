package mercury_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
	"github.com/quicksilver-rpc/quicksilver/mercury/internal/xnet"
)

// rxmRequest is how a process of Mercury 2.2 begins: the versions of ofi_rxm, its limits and its identity are behind the header.
const rxmRequest = "\x03\x00\x00\x18" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\x01\x00\x00\x00\x00\x00\x00\x00" + "\x01\x01\x04\x03" + "\x97\xab\x00\x00" + "\x00\x40\x00\x00" + "\x00\x02\x00\x00" + "\x01\x00\x00\x00\x16\x30\x00\x00"

// rxmRefusal is how it refuses a connection.
const rxmRefusal = "\x03\x06\x00\x02" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" +
	"\x01\x00\x00\x00\x00\x00\x00\x00" + "\x01\x01"

// A logText is a log that may be read while it is written.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// take returns the bytes written since the last call.
func (l *logText) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// TestOtherProtocols checks that peers with another protocol are refused, in their own protocol
// where that is known, and the log has the reason, once for each. Others are served.
func TestOtherProtocols(t *testing.T) {
	var log logText
	n := open(t, mercury.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	serveEcho(n)
	swapped := (&xnet.Setup{Port: 7, PID: 9}).Append(nil)
	swapped[24], swapped[31] = 0, 1
	for _, c := range []struct{ begins, answer, words string }{
		{rxmRequest, rxmRefusal, "ofi_rxm: update Mercury to 2.3 or later, and libfabric to 1.18 or later"},
		{string(swapped), "", "byte order of the peer"},
		{string((&xnet.Setup{Kind: xnet.Accept, Port: 7}).Append(nil)), "", "set-up message of kind 1"},
		{"GET / HTTP/1.1\r\n\r\n", "", "set-up version 71, want 3"},
		{"", "", ""},
	} {
		for range 3 {
			nc, err := net.Dial("tcp", hostPort(n))
			require.NoError(t, err)
			d := newDouble(t, nc, 1)
			_, err = nc.Write([]byte(c.begins))
			require.NoError(t, err)
			if c.begins == "" {
				require.NoError(t, nc.(*net.TCPConn).CloseWrite())
			}
			got, err := io.ReadAll(d.r)
			if err == nil || c.answer != "" { // or reset, when not all was read
				require.Equal(t, c.answer, string(got))
			}
		}
		logged := log.take()
		if c.words == "" {
			require.Empty(t, logged)
			continue
		}
		require.Contains(t, logged, c.words)
		require.Equal(t, 1, strings.Count(logged, "refused"), "%s", logged)
	}

	d := dialDouble(t, n, 46)
	wire := (&hgwire.Request{ID: echoID}).Append(hgwire.AppendSource(nil, d.self), nil)
	wire[17] = 4 // Mercury 2.0
	for range 2 {
		d.send(xnet.Header{Flags: xnet.Immediate, Tag: 1}, wire)
		r, _ := d.recvResponse(1)
		require.EqualValues(t, 15, r.Code)
	}
	logged := log.take()
	require.Contains(t, logged, "protocol version 4, want 5")
	require.Equal(t, 1, strings.Count(logged, "refused"))
	d.sendRequest(2, echoID, 0, []byte("in"))
	_, out := d.recvResponse(2)
	require.Equal(t, "in", string(out))
}

// TestRefusalsBounded checks that messages of hosts cannot fill the log.
func TestRefusalsBounded(t *testing.T) {
	var log logText
	n := open(t, mercury.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for i := range 600 { // as many reasons: lengths beyond the limit
		nc, err := net.Dial("tcp", hostPort(n))
		require.NoError(t, err)
		d := newDouble(t, nc, 1)
		_, err = nc.Write([]byte{3, 0, byte(2 + i/256), byte(i)})
		require.NoError(t, err)
		d.requireEnded()
	}
	require.Equal(t, 256, strings.Count(log.take(), "refused"))
}

// TestCallOfOldMercury checks that the error of a call to a process of Mercury 2.2 has the remedy,
// and does not wait for another answer.
func TestCallOfOldMercury(t *testing.T) {
	addr, accept, _ := listen(t)
	n := open(t, mercury.Config{})
	errs := make(chan error, 1)
	go func() {
		_, err := n.Call(testContext(t), addr, 9, nil)
		errs <- err
	}()
	d, _ := accept()
	_, err := d.nc.Write([]byte(rxmRefusal))
	require.NoError(t, err)
	err = <-errs
	require.ErrorIs(t, err, mercury.ErrUnsupported)
	require.ErrorContains(t, err, "ofi_rxm: update Mercury to 2.3")
	require.Equal(t, mercury.NotRun, mercury.FateOf(err))
}
