package tcp_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// records implements the records of TLS 1.3 with AES-128-GCM, taken over from package tls after its
// handshake: that package never requests new keys.
type records struct {
	*net.TCPConn
	t       testing.TB
	in, out halfTLS13
	plain   []byte // decrypted, not yet read
	updates int    // of the peer's keys

	notified bool // close_notify has arrived
}

// halfTLS13 is one direction.
type halfTLS13 struct {
	t      testing.TB
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// takeRecords does the handshake on r and takes the records over.
func takeRecords(r *rawPeer, cfg *tls.Config) *records {
	r.t.Helper()
	var log bytes.Buffer
	cfg = raw13(cfg)
	cfg.KeyLogWriter = &log
	nc := tls.Client(r.tcp, cfg)
	require.NoError(r.t, nc.Handshake())
	require.Equal(r.t, tls.TLS_AES_128_GCM_SHA256, nc.ConnectionState().CipherSuite)
	rec := &records{TCPConn: r.tcp, t: r.t}
	for _, line := range strings.Split(log.String(), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		secret, err := hex.DecodeString(fields[2])
		require.NoError(r.t, err)
		switch fields[0] {
		case "CLIENT_TRAFFIC_SECRET_0":
			rec.out.begin(r.t, secret)
		case "SERVER_TRAFFIC_SECRET_0":
			rec.in.begin(r.t, secret)
		}
	}
	r.nc = rec
	return rec
}

func (h *halfTLS13) begin(t testing.TB, secret []byte) {
	h.t, h.secret, h.seq = t, secret, 0
	block, err := aes.NewCipher(h.derive("key", 16))
	require.NoError(t, err)
	h.aead, err = cipher.NewGCM(block)
	require.NoError(t, err)
	h.iv = h.derive("iv", 12)
}

// update switches to the next keys.
func (h *halfTLS13) update() { h.begin(h.t, h.derive("traffic upd", sha256.Size)) }

// derive is HKDF-Expand-Label of RFC 8446 without a context.
func (h *halfTLS13) derive(label string, n int) []byte {
	label = "tls13 " + label
	info := fmt.Sprintf("%c%c%c%s%c", 0, n, len(label), label, 0)
	b, err := hkdf.Expand(sha256.New, h.secret, info, n)
	require.NoError(h.t, err)
	return b
}

func (h *halfTLS13) nonce() []byte {
	nonce := bytes.Clone(h.iv)
	for i, b := range binary.BigEndian.AppendUint64(nil, h.seq) {
		nonce[4+i] ^= b
	}
	h.seq++
	return nonce
}

// record sends one record.
func (c *records) record(kind byte, data []byte) error {
	head := []byte{23, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(head[3:], uint16(len(data)+1+16))
	_, err := c.TCPConn.Write(c.out.aead.Seal(head, c.out.nonce(), append(bytes.Clone(data), kind), head))
	return err
}

// update switches to new keys, and requests the same of the peer.
func (c *records) update() {
	c.t.Helper()
	require.NoError(c.t, c.record(22, []byte{24, 0, 0, 1, 1}))
	c.out.update()
}

// Write sends application data.
func (c *records) Write(b []byte) (int, error) { return len(b), c.record(23, b) }

// Read takes application data, and new keys of the peer.
func (c *records) Read(b []byte) (int, error) {
	for len(c.plain) == 0 && len(b) > 0 {
		head := make([]byte, 5)
		if _, err := io.ReadFull(c.TCPConn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint16(head[3:]))
		if _, err := io.ReadFull(c.TCPConn, body); err != nil {
			return 0, err
		}
		data, err := c.in.aead.Open(nil, c.in.nonce(), body, head)
		require.NoError(c.t, err)
		switch last := len(data) - 1; data[last] {
		case 23:
			c.plain = data[:last]
		case 22:
			require.Equal(c.t, []byte{24, 0, 0, 1, 0}, data[:last])
			c.in.update()
			c.updates++
		case 21:
			c.notified = bytes.Equal(data[:last], []byte{1, 0})
			return 0, io.EOF
		}
	}
	n := copy(b, c.plain)
	c.plain = c.plain[n:]
	return n, nil
}

// TestTLSKeyUpdate checks that a peer may request new keys in the middle of a session, between two
// records of one frame too, and when nothing was written for long.
func TestTLSKeyUpdate(t *testing.T) {
	t.Parallel()
	cfg := mutualTLS(t)
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		t.Parallel()
		opts = withTLS(opts, cfg)
		opts.WriteTimeout = 500 * time.Millisecond
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		r := rawDial(t, n)
		rec := takeRecords(r, cfg)
		hello := helloFrame(func(*frame.Greeting) {})
		r.write(hello[:10])
		rec.update()
		r.write(hello[10:])
		r.readHello()
		r.peer.Context, r.limit = 0, 32
		pause(opts.WriteTimeout + 100*time.Millisecond)
		for range 20 {
			rec.update()
			r.ping()
		}
		require.Equal(t, 21, rec.updates)

		// One that does nothing else is not listened to for long.
		for range 40 {
			if rec.record(22, []byte{24, 0, 0, 1, 1}) != nil {
				break
			}
			rec.out.update()
		}
		for err := error(nil); err == nil; {
			_, err = r.nc.Read(make([]byte, 1))
		}
		driveUntil(t, "end of the session", func() bool { return n.ctx().Stats().Peers == 0 }, n)
	})
}
