package protect_test

import (
	"crypto/tls"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/protect"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// TestInitialSecrets checks the vectors of RFC 9001 A.1.
func TestInitialSecrets(t *testing.T) {
	client, server, err := protect.Initial(unhex(t, "8394c8f03e515708"))
	require.NoError(t, err)
	require.Equal(t, unhex(t, "c00cf151ca5be075ed0ebfb5c80323c42d6b7db67881289af4008f1f6c357aea"), client)
	require.Equal(t, unhex(t, "3c199828fd139efd216c155ad844cc81fb82fa8d7446fa7d78be803acdda951b"), server)
}

// TestClientInitial checks the vectors of RFC 9001 A.2. Seal fills in the length of the number and
// the number; the payload is a CRYPTO frame and padding.
func TestClientInitial(t *testing.T) {
	client, _, err := protect.Initial(unhex(t, "8394c8f03e515708"))
	require.NoError(t, err)
	s, err := protect.NewSealer(tls.TLS_AES_128_GCM_SHA256, client, nil)
	require.NoError(t, err)
	head := unhex(t, "c000000001088394c8f03e5157080000449e")
	payload := make([]byte, 1162)
	copy(payload, unhex(t, `060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e868
		04fe3a47f06a2b69484c00000413011302010000c000000010000e00000b6578
		616d706c652e636f6dff01000100000a00080006001d00170018001000070005
		04616c706e000500050100000000003300260024001d00209370b2c9caa47fba
		baf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b000302030400
		0d0010000e0403050306030203080408050806002d00020101001c0002400100
		3900320408ffffffffffffffff05048000ffff07048000ffff08011001048000
		75300901100f088394c8f03e51570806048000ffff`))
	b := append(append(append(append([]byte(nil), head...), 0, 0, 0, 0), payload...), make([]byte, protect.TagSize)...)
	for range 2 { // the vector is packet 2
		require.NoError(t, s.Seal(append([]byte(nil), b...), len(head)))
	}
	require.NoError(t, s.Seal(b, len(head)))
	require.Equal(t, unhex(t, "c000000001088394c8f03e5157080000449e7b9aec34"), b[:len(head)+4])
	require.Equal(t, unhex(t, "d1b1c98dd7689fb8ec11d242b123dc9b"), b[len(head)+4:len(head)+20])
	require.Equal(t, unhex(t, "e221af44860018ab0856972e194cd934"), b[len(b)-protect.TagSize:])

	o, err := protect.NewOpener(tls.TLS_AES_128_GCM_SHA256, client, nil)
	require.NoError(t, err)
	got, ok := o.Open(b, len(head))
	require.True(t, ok)
	require.Equal(t, payload, got)
}

// pair returns both ends of one direction, with another that lets the receiver follow key updates.
type pair struct {
	seal, back   *protect.Sealer
	open, update *protect.Opener
}

func newPair(t testing.TB, suite uint16, secret []byte, most uint64) *pair {
	t.Helper()
	p, a, b := &pair{}, &protect.Phase{Leads: true, Most: most}, &protect.Phase{Most: most}
	other := append([]byte{secret[0] ^ 1}, secret[1:]...)
	for _, err := range []error{
		func() (err error) { p.seal, err = protect.NewSealer(suite, secret, a); return }(),
		func() (err error) { p.update, err = protect.NewOpener(suite, other, a); return }(),
		func() (err error) { p.open, err = protect.NewOpener(suite, secret, b); return }(),
		func() (err error) { p.back, err = protect.NewSealer(suite, other, b); return }(),
	} {
		require.NoError(t, err)
	}
	return p
}

const at = 9

func newPacket(payload string) []byte {
	b := append([]byte{0x40}, make([]byte, at-1+protect.NumberSize)...)
	return append(append(b, payload...), make([]byte, protect.TagSize)...)
}

func sealPacket(t testing.TB, s *protect.Sealer, payload string) []byte {
	t.Helper()
	b := newPacket(payload)
	require.NoError(t, s.Seal(b, at))
	return b
}

var suites = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}

// TestSuites checks that sealed packets are opened, with each of the suites.
func TestSuites(t *testing.T) {
	for _, suite := range suites {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			secret := unhex(t, "9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b")
			if suite == tls.TLS_AES_256_GCM_SHA384 {
				secret = append(secret, secret[:16]...)
			}
			p := newPair(t, suite, secret, 0)
			for _, text := range []string{"", "a", "hello", strings.Repeat("x", 60000)} {
				b := sealPacket(t, p.seal, text)
				require.NotContains(t, string(b), "hello")
				got, ok := p.open.Open(b, at)
				require.True(t, ok)
				require.Equal(t, text, string(got))
			}
		})
	}
	_, err := protect.NewSealer(tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, make([]byte, 32), nil)
	require.ErrorContains(t, err, "unsupported cipher suite")
}

// TestForged checks that a packet that is changed in any bit, cut anywhere, or repeated, is not
// opened, and valid ones still are.
func TestForged(t *testing.T) {
	for _, suite := range suites {
		p := newPair(t, suite, make([]byte, 48)[:32+16*int(suite-tls.TLS_AES_128_GCM_SHA256)%32], 0)
		b := sealPacket(t, p.seal, "transfer 100 to Alice")
		try := func(b []byte) bool {
			_, ok := p.open.Open(append([]byte(nil), b...), at)
			return ok
		}
		for i := range 8 * len(b) {
			if i/8 >= 1 && i/8 < at {
				continue // the connection id is looked up before, and is covered as well: below
			}
			forged := append([]byte(nil), b...)
			forged[i/8] ^= 1 << (i % 8)
			require.False(t, try(forged), "bit %d", i)
		}
		forged := append([]byte(nil), b...)
		forged[3] ^= 1
		require.False(t, try(forged), "the id is not covered")
		for n := range len(b) {
			require.False(t, try(b[:n]), "cut at %d", n)
		}
		require.True(t, try(b))
		require.False(t, try(b), "was repeated")
	}
}

// TestReordered checks that packets may arrive in any order within the window, each once; older
// ones are refused.
func TestReordered(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	p := newPair(t, tls.TLS_AES_128_GCM_SHA256, make([]byte, 32), 0)
	const n = 1500
	all := make([][]byte, n)
	for i := range all {
		all[i] = sealPacket(t, p.seal, "x")
	}
	for range 2 {
		for j, i := range r.Perm(n) {
			_, ok := p.open.Open(append([]byte(nil), all[i]...), at)
			require.Equal(t, !came[i], ok, "%d, as number %d", i, j)
			came[i] = true
		}
	}
	for range 5000 {
		_, ok := p.open.Open(sealPacket(t, p.seal, "x"), at)
		require.True(t, ok)
	}
	late := sealPacket(t, p.seal, "x")
	for range 2100 {
		_, ok := p.open.Open(sealPacket(t, p.seal, "x"), at)
		require.True(t, ok)
	}
	_, ok := p.open.Open(late, at)
	require.False(t, ok, "beyond the window")
}

var came [1500]bool

// TestKeyUpdates checks 10,000 updates of either side, while packets are lost, repeated and
// reordered.
func TestKeyUpdates(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	p := newPair(t, tls.TLS_AES_128_GCM_SHA256, make([]byte, 32), 5)
	type way struct {
		s    *protect.Sealer
		o    *protect.Opener
		held []byte
	}
	ways := [2]*way{{s: p.seal, o: p.open}, {s: p.back, o: p.update}}
	for n := 0; p.seal.Updates() < 10000; n++ {
		require.Less(t, n, 1000000)
		w := ways[n%2]
		b := sealPacket(t, w.s, "x")
		switch k := r.IntN(10); {
		case k == 0: // lost
			continue
		case k < 3 && w.held == nil:
			w.held = b
			continue
		}
		again := append([]byte(nil), b...)
		_, ok := w.o.Open(b, at)
		require.True(t, ok)
		_, ok = w.o.Open(again, at)
		require.False(t, ok)
		if w.held != nil && r.IntN(2) == 0 { // of the generation before, or of this one
			_, ok = w.o.Open(w.held, at)
			w.held = nil
			_ = ok // two generations back it is lost
		}
	}
	require.InDelta(t, p.seal.Updates(), p.back.Updates(), 1)
}

// FuzzOpen checks that no packet that is not sealed is opened, and none panics.
func FuzzOpen(f *testing.F) {
	p := newPair(f, tls.TLS_AES_128_GCM_SHA256, make([]byte, 32), 0)
	f.Add([]byte{0x40}, 9)
	f.Add(sealPacket(f, p.seal, "hello"), 9)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		o, err := protect.NewOpener(tls.TLS_CHACHA20_POLY1305_SHA256, make([]byte, 32), &protect.Phase{})
		require.NoError(t, err)
		if n > 0 && n < 1<<16 {
			_, ok := o.Open(b, n)
			require.False(t, ok)
		}
	})
}
