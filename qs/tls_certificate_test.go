package qs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var whoami = qs.Define[struct{}, string]("tls/whoami")

// serveWhoami opens a server that answers with the name of its caller, by the files.
func serveWhoami(t *testing.T, cert, key, ca string) *qs.Node {
	t.Helper()
	cfg, err := qs.LoadTLS(cert, key, ca)
	require.NoError(t, err)
	return server(t, qs.Config{TLS: cfg}, func(n *qs.Node) {
		whoami.Handle(n, func(ctx context.Context, _ struct{}) (string, error) {
			who := qs.CallerFrom(ctx)
			if !who.Secure {
				return "", errors.New("the session is not secure")
			}
			return who.Name, nil
		})
	})
}

// callWhoami calls whoami with a new node, that is, over a new connection.
func callWhoami(t *testing.T, s *qs.Node, cert, key, ca string) (string, error) {
	t.Helper()
	cfg, err := qs.LoadTLS(cert, key, ca)
	require.NoError(t, err)
	n, err := qs.Open("tcp://", qs.Config{TLS: cfg})
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Close()) }()
	return whoami.Call(testContext(t), peer(t, n, s.Addr().String()), struct{}{})
}

// TestLoadTLS checks for each set of files which callers it lets call. A handler gets the name of
// its caller from a verified certificate only.
func TestLoadTLS(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	strange, strangeKey := testcert.Write(t)
	mutual := serveWhoami(t, cert, key, cert)
	forAll := serveWhoami(t, cert, key, "")

	name, err := callWhoami(t, mutual, cert, key, cert)
	require.NoError(t, err)
	require.Equal(t, "node", name)
	name, err = callWhoami(t, forAll, "", "", cert)
	require.NoError(t, err)
	require.Empty(t, name)
	name, err = callWhoami(t, forAll, strange, strangeKey, cert)
	require.NoError(t, err)
	require.Empty(t, name, "it was not verified")

	_, err = callWhoami(t, mutual, "", "", cert)
	require.ErrorContains(t, err, "requires a certificate")
	require.Equal(t, qs.NotRun, qs.FateOf(err))
	_, err = callWhoami(t, mutual, strange, strangeKey, cert)
	require.ErrorContains(t, err, "does not trust the authority")
	_, err = callWhoami(t, mutual, cert, key, strange)
	require.ErrorContains(t, err, "add it to RootCAs")

	none, err := qs.LoadTLS("", "", "")
	require.NoError(t, err)
	require.Nil(t, none)
	_, err = qs.LoadTLS("no", "such", "file")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = qs.LoadTLS(cert, "", cert)
	require.ErrorIs(t, err, qs.ErrInvalid)
	_, err = qs.LoadTLS(cert, key, key)
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.ErrorContains(t, err, key)
}

// TestCertificateReplaced checks that files that are replaced are used for the next connection, by
// servers and clients; invalid ones are not.
func TestCertificateReplaced(t *testing.T) {
	t.Parallel()
	old, oldKey := testcert.Write(t)
	fresh, freshKey := testcert.Write(t)
	dir := t.TempDir()
	cert, key, both := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	install := func(from, to string) { // as tools that renew do: all at once
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to+".new", b, 0o600))
		require.NoError(t, os.Rename(to+".new", to))
	}
	install(old, cert)
	install(oldKey, key)
	a, err := os.ReadFile(old)
	require.NoError(t, err)
	b, err := os.ReadFile(fresh)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(both, append(a, b...), 0o600))
	s := serveWhoami(t, cert, key, both)

	_, err = callWhoami(t, s, old, oldKey, old)
	require.NoError(t, err)
	install(fresh, cert) // the key is still the other
	_, err = callWhoami(t, s, old, oldKey, old)
	require.NoError(t, err, "the last pair that fits stays in use")
	install(freshKey, key)
	_, err = callWhoami(t, s, old, oldKey, old)
	require.ErrorContains(t, err, "add it to RootCAs", "the server shows the new one")
	_, err = callWhoami(t, s, cert, key, fresh)
	require.NoError(t, err)

	own, err := qs.LoadTLS(cert, key, both) // of a client, which has it replaced in turn
	require.NoError(t, err)
	was, err := own.GetClientCertificate(nil)
	require.NoError(t, err)
	install(old, cert)
	install(oldKey, key)
	is, err := own.GetClientCertificate(nil)
	require.NoError(t, err)
	require.NotEqual(t, was.Certificate, is.Certificate)
}

// TestBadCertificateIsLogged checks that invalid files are logged by the Logger of the node, also
// for a copy of the result of LoadTLS.
func TestBadCertificateIsLogged(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	cfg, err := qs.LoadTLS(cert, key, "")
	require.NoError(t, err)
	var log bytes.Buffer
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{TLS: cfg.Clone(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer n.Close()
	require.NoError(t, os.WriteFile(cert, []byte("broken"), 0o600))
	was, err := cfg.GetCertificate(&tls.ClientHelloInfo{})
	require.NoError(t, err)
	require.NotNil(t, was)
	require.Contains(t, log.String(), "replaced by an invalid one")
	require.Contains(t, log.String(), cert)
}
