package protocol_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

const theKey = 0x0123456789abcdef

func key(k uint64) *uint64 { return &k }

func keyBytes(k uint64) []byte { return binary.BigEndian.AppendUint64(nil, k) }

func newKeyTest(t *testing.T) *serverTest {
	return newServerTest(t, protocol.ServerConfig{Form: protocol.Strict, Size: 1, Auth: protocol.Auth{Key: key(theKey)}})
}

// TestKey (L1, L6, L-T18, L-T20) checks that the length of AUTH determines which of the two texts
// the client follows, and the right key is admitted.
func TestKey(t *testing.T) {
	b := newKeyTest(t)
	b.requireSent(b.connect(command("AUTH", keyBytes(theKey)), rank(0)), command("IMPI", i32(1)))

	b = newKeyTest(t)
	id := b.connect(command("AUTH", i32(3)))
	b.requireSent(id, i32(1, 8)) // the key rather than none
	b.send(id, keyBytes(theKey), rank(0))
	b.requireSent(id, command("IMPI", i32(1)))
}

// TestStrongestMechanism (L2) checks that of several mechanisms that both have, the strongest is
// taken.
func TestStrongestMechanism(t *testing.T) {
	auth := protocol.Auth{None: true, Key: key(theKey)}
	b := newServerTest(t, protocol.ServerConfig{Form: protocol.Strict, Size: 1, Auth: auth})
	b.requireSent(b.connect(command("AUTH", i32(-1))), i32(1, 8))
	b.requireSent(b.connect(command("AUTH", i32(1))), i32(0, 0))
}

// TestWrongKey (L1, L3, L4, L-T18, L-T19, L-T20) checks that a client without the key gets no
// information and delays no other.
func TestWrongKey(t *testing.T) {
	b := newKeyTest(t)
	for name, words := range map[string][][]byte{
		"no AUTH":             {rank(0)},
		"wrong key":           {command("AUTH", keyBytes(theKey+1)), rank(0)},
		"no common mechanism": {command("AUTH", i32(1)), rank(0)},
		"bit 31":              {command("AUTH", i32(-1<<31)), rank(0)},
		"no mechanism":        {command("AUTH", i32(0)), rank(0)},
		"HMAC in IMPI":        {command("AUTH", i32(4)), rank(0)},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			require.ErrorIs(t, b.requireRefused(b.connect(words...)), protocol.ErrDenied)
		})
	}
	b.t = t
	id := b.connect(command("AUTH", i32(2)))
	b.requireSent(id, i32(1, 8))
	b.send(id, keyBytes(theKey^1<<63), rank(0))
	require.ErrorIs(t, b.requireRefused(id), protocol.ErrDenied)
	require.ErrorIs(t, b.requireRefused(b.connect(command("AUTH", []byte("12345")))), protocol.ErrViolation)
	b.requireSent(b.connect(command("AUTH", keyBytes(theKey)), rank(0)), command("IMPI", i32(1)))
}

// TestNoKeyNeeded (L1, L2) checks that a server that requires no authentication accepts any.
func TestNoKeyNeeded(t *testing.T) {
	for name, words := range map[string][][]byte{
		"no AUTH":   {rank(0)},
		"some key":  {command("AUTH", keyBytes(99)), rank(0)},
		"mechanism": {command("AUTH", i32(3)), rank(0)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newStrictTest(t, 1)
			id := b.connect(words...)
			if name == "mechanism" {
				b.requireSent(id, i32(0, 0), command("IMPI", i32(1)))
				return
			}
			b.requireSent(id, command("IMPI", i32(1)))
		})
	}
}

// TestNoMechanism (L2, L-T19) checks that without a common mechanism no client starts.
func TestNoMechanism(t *testing.T) {
	const want = "rendezvous: no authentication enabled, set Auth.None, Key or Secret"
	for _, auth := range []protocol.Auth{{}, {Secret: []byte("s")}} {
		_, err := protocol.NewServer(protocol.ServerConfig{Form: protocol.Strict, Size: 1, Auth: auth})
		require.EqualError(t, err, want)
		_, err = protocol.NewClient(protocol.ClientConfig{Form: protocol.Strict, Auth: auth})
		require.EqualError(t, err, want)
	}
	_, err := protocol.NewServer(protocol.ServerConfig{Size: 1})
	require.EqualError(t, err, want)
}

// TestClientRefusesUnofferedMechanism checks that a client accepts no mechanism that it has not
// offered, so that a server cannot make it send its key.
func TestClientRefusesUnofferedMechanism(t *testing.T) {
	for name, answer := range map[string][]byte{
		"key":        i32(1, 8),
		"unknown":    i32(7, 0),
		"negative":   i32(-1, 0),
		"bad length": i32(0, 8),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := protocol.NewClient(protocol.ClientConfig{Form: protocol.Strict, Size: 2, Auth: open})
			require.NoError(t, err)
			out, _ := c.Take()
			require.Equal(t, command("AUTH", i32(1)), out)
			require.Error(t, c.Receive(answer))
			out, _ = c.Take()
			require.Empty(t, out)
		})
	}
}

// TestClientTakesAnyLengthOfAKey checks that a server may announce any length with the key: a
// client sends the length of a key.
func TestClientTakesAnyLengthOfAKey(t *testing.T) {
	for _, n := range []int{0, 4, 8, 100} {
		key := uint64(theKey)
		c, err := protocol.NewClient(protocol.ClientConfig{Form: protocol.Strict, Size: 2, Auth: protocol.Auth{Key: &key}})
		require.NoError(t, err)
		c.Take()
		require.NoError(t, c.Receive(i32(1, n)))
		out, _ := c.Take()
		require.True(t, bytes.HasPrefix(out, keyBytes(theKey)), "length %d: % x", n, out)
	}
}

func newSecretTest(t *testing.T) *serverTest {
	return newServerTest(t, protocol.ServerConfig{
		Size: 1, Auth: protocol.Auth{Secret: []byte("secret")},
		Nonce: func(b []byte) { copy(b, "the server's nonce, 32 bytes long") },
	})
}

func proof(secret, role, server, client string) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte("quicksilver startup 1 " + role + "\n" + server + client))
	return m.Sum(nil)
}

// TestSecret checks that both sides prove that they know the secret, and a proof is good for one
// connection and one role.
func TestSecret(t *testing.T) {
	const server, client = "the server's nonce, 32 bytes lon", "the client's nonce, 32 bytes too"
	for name, c := range map[string]struct {
		proof []byte
		ok    bool
	}{
		"right":        {proof("secret", "client", server, client), true},
		"wrong secret": {proof("Secret", "client", server, client), false},
		"replay":       {proof("secret", "client", client, client), false},
		"reflection":   {proof("secret", "server", server, client), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSecretTest(t)
			id := b.connect(command("AUTH", i32(7)))
			b.requireSent(id, i32(2, 64), []byte(server))
			b.send(id, []byte(client), c.proof, command("JOIN", i32(1, 0, 1)))
			if c.ok {
				b.requireSent(id, proof("secret", "server", server, client), command("JOIN", i32(1)))
				return
			}
			require.ErrorIs(t, b.requireRefused(id), protocol.ErrDenied)
		})
	}
	b := newSecretTest(t)
	require.ErrorIs(t, b.requireRefused(b.connect(command("JOIN", i32(1, 0, 1)))), protocol.ErrDenied)
	require.ErrorIs(t, b.requireRefused(b.connect(command("AUTH", i32(3)))), protocol.ErrDenied)
}

// TestServerWithoutTheSecret checks that a client sends nothing to a server that cannot prove
// itself.
func TestServerWithoutTheSecret(t *testing.T) {
	const client = "the client's nonce, 32 bytes too"
	c, err := protocol.NewClient(protocol.ClientConfig{
		Size: 1, Auth: protocol.Auth{Secret: []byte("secret")}, Nonce: func(b []byte) { copy(b, client) },
	})
	require.NoError(t, err)
	c.Take()
	server := make([]byte, 32)
	require.NoError(t, c.Receive(join(i32(2, 64), server)))
	out, _ := c.Take()
	require.Equal(t, join([]byte(client), proof("secret", "client", string(server), client)), out)
	require.ErrorIs(t, c.Receive(proof("other", "server", string(server), client)), protocol.ErrDenied)
	out, _ = c.Take()
	require.Empty(t, out)
}
