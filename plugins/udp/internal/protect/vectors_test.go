package protect

import (
	"crypto/tls"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChaCha checks the vectors of RFC 9001 A.5.
func TestChaCha(t *testing.T) {
	bytes := func(s string) []byte {
		b, err := hex.DecodeString(s)
		require.NoError(t, err)
		return b
	}
	secret := bytes("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b")
	s := suites[tls.TLS_CHACHA20_POLY1305_SHA256]
	for label, want := range map[string]string{
		"quic key": "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8",
		"quic iv":  "e0459b3474bdd0e44a41c144",
		"quic hp":  "25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4",
		"quic ku":  "1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9",
	} {
		got, err := s.expand(secret, label, len(want)/2)
		require.NoError(t, err)
		require.Equal(t, bytes(want), got, label)
	}
	var d side
	g, err := d.init(tls.TLS_CHACHA20_POLY1305_SHA256, secret)
	require.NoError(t, err)
	require.Equal(t, bytes("e0459b3474bdd0e46d417eb0"), d.nonceOf(g, 654360564))
	d.mask(&d.bits, bytes("5e5cd55c41f69080575d7999c25a5bfb"))
	require.Equal(t, bytes("aefefe7d03"), d.bits[:5])
	head := bytes("4200bff4")
	require.Equal(t, bytes("655e5cd55c41f69080575d7999c25a5bfb"), g.aead.Seal(nil, d.nonceOf(g, 654360564), []byte{1}, head))
}
