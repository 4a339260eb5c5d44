package qs_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// encodePEM returns certificates, in PEM.
func encodePEM(certs ...[]byte) (b []byte) {
	for _, der := range certs {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return b
}

// issue returns a certificate that an authority has signed, and its key, in PEM.
func issue(t *testing.T, authority tls.Certificate) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := *authority.Leaf
	c.IsCA, c.Subject.CommonName, c.KeyUsage = false, "issued", x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, &c, authority.Leaf, &private.PublicKey, authority.PrivateKey)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return encodePEM(der), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// replaceFile puts b into the place of a file at once, as tools that renew certificates do.
func replaceFile(t *testing.T, file string, b []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", b, 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

// TestAuthoritiesRotate replaces the authority and the certificates of a cluster while it is
// called, over new connections and over one that lasts, and no call fails. In the end a client with
// a certificate of the old authority is refused, and one that trusts only that one refuses the
// server.
func TestAuthoritiesRotate(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"tcp", "udp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			named := func(name string) tls.Certificate {
				return testcert.NewWith(func(c *x509.Certificate) { c.Subject.CommonName = name })
			}
			old, fresh := named("old authority"), named("fresh authority")
			oldCA, freshCA := encodePEM(old.Certificate[0]), encodePEM(fresh.Certificate[0])
			dir := t.TempDir()
			files := func(prefix string) (cert, key, ca string) {
				prefix = filepath.Join(dir, prefix)
				return prefix + "cert", prefix + "key", prefix + "ca"
			}
			cert, key, ca := files("node-")
			renew := func(by tls.Certificate) {
				c, k := issue(t, by)
				replaceFile(t, cert, c)
				replaceFile(t, key, k)
			}
			renew(old)
			replaceFile(t, ca, oldCA)
			cfg, err := qs.LoadTLS(cert, key, ca)
			require.NoError(t, err)
			serving := quietConfig()
			serving.TLS = cfg
			s := serverAt(t, scheme+"://127.0.0.1:0", serving, func(n *qs.Node) {
				whoami.Handle(n, func(ctx context.Context, _ struct{}) (string, error) { return qs.CallerFrom(ctx).Name, nil })
			})

			ctx, stop := context.WithCancel(testContext(t))
			var callers sync.WaitGroup
			var made [3]atomic.Int64 // calls of two callers by new connections, and of one by a connection that lasts
			call := func(to qs.Peer) bool {
				name, err := whoami.Call(context.Background(), to, struct{}{})
				if err != nil || name == "" {
					t.Errorf("a call by %q failed: %v", name, err)
					return false
				}
				return true
			}
			dialed := func(cfg *tls.Config) (string, error) {
				n, err := qs.Open(scheme+"://", qs.Config{TLS: cfg})
				require.NoError(t, err)
				defer func() { require.NoError(t, n.Close()) }()
				return whoami.Call(testContext(t), peer(t, n, s.Addr().String()), struct{}{})
			}
			for i := range 2 {
				callers.Go(func() {
					for ctx.Err() == nil {
						n, err := qs.Open(scheme+"://", qs.Config{TLS: cfg})
						if err != nil {
							t.Error(err)
							return
						}
						to, err := n.Peer(ctx, s.Addr().String())
						ok := err != nil || call(to)
						if err := n.Close(); err != nil || !ok {
							return
						}
						made[i].Add(1)
					}
				})
			}
			lasting := peer(t, open(t, scheme+"://", qs.Config{TLS: cfg}), s.Addr().String())
			callers.Go(func() {
				for ctx.Err() == nil && call(lasting) {
					made[2].Add(1)
				}
			})
			settled := func() { // each caller has made a call that began after the last change
				for i, want := range []int64{made[0].Load() + 2, made[1].Load() + 2, made[2].Load() + 2} {
					for made[i].Load() < want && !t.Failed() {
						require.NoError(t, s.HG().Sleep(testContext(t), time.Millisecond))
					}
				}
			}
			settled()
			for _, step := range []func(){
				func() { replaceFile(t, ca, slices.Concat(oldCA, freshCA)) },
				func() { renew(fresh) },
				func() { replaceFile(t, ca, []byte("no PEM")) }, // the last that can be used stays
				func() { replaceFile(t, ca, freshCA) },
			} {
				step()
				settled()
			}
			stop()
			callers.Wait()
			t.Logf("%d calls by new connections and %d by one that lasts, none has failed", made[0].Load()+made[1].Load(), made[2].Load())

			c, k, both := files("old-")
			was, wasKey := issue(t, old)
			replaceFile(t, c, was)
			replaceFile(t, k, wasKey)
			replaceFile(t, both, slices.Concat(oldCA, freshCA))
			stale, err := qs.LoadTLS(c, k, both)
			require.NoError(t, err)
			_, err = dialed(stale)
			require.ErrorContains(t, err, "does not trust the authority", "a client of the old authority")
			require.Equal(t, qs.NotRun, qs.FateOf(err))
			replaceFile(t, both, oldCA) // a client's own file is read anew, too
			_, err = dialed(stale)
			require.ErrorContains(t, err, "add it to RootCAs", "a client that trusts the old authority only")
			replaceFile(t, both, freshCA)
			good, goodKey := issue(t, fresh)
			replaceFile(t, c, good)
			replaceFile(t, k, goodKey)
			_, err = dialed(stale)
			require.NoError(t, err, "the same configuration, once its files are good")
		})
	}
}

// TestRenewedBeforeBulk renews the certificate of one side after a session was made, and before a
// second connection of it would be, for large data. The session is not changed.
func TestRenewedBeforeBulk(t *testing.T) {
	eachTLS(t, func(t *testing.T, scheme string) {
		for _, renewed := range []string{"server", "client"} {
			t.Run(renewed, func(t *testing.T) {
				t.Parallel()
				ours, theirs := newExpiringFiles(t), newExpiringFiles(t)
				theirs.authority = ours.authority
				replaceFile(t, theirs.ca, encodePEM(ours.authority.Certificate[0]))
				files := map[string]*expiringFiles{"server": ours, "client": theirs}
				for name, f := range files {
					f.issue(t, name, time.Hour)
				}
				turn := qs.Define[[]byte, []byte]("rotate/turn")
				wait := qs.Define[struct{}, struct{}]("rotate/wait")
				finish := make(chan struct{})
				s := serverAt(t, scheme+"://127.0.0.1:0", qs.Config{TLS: ours.load(t)}, func(n *qs.Node) {
					turn.Handle(n, func(_ context.Context, b []byte) ([]byte, error) { return b, nil })
					wait.Handle(n, func(context.Context, struct{}) (struct{}, error) {
						<-finish
						return struct{}{}, nil
					})
				})
				n := open(t, scheme+"://", qs.Config{TLS: theirs.load(t)})
				to := peer(t, n, s.Addr().String())
				_, err := turn.Call(testContext(t), to, []byte("a session"))
				require.NoError(t, err)
				files[renewed].issue(t, renewed, time.Hour)
				waiting := wait.Go(testContext(t), to, struct{}{})
				for range 10 {
					got, err := turn.Call(testContext(t), to, make([]byte, 3<<20))
					require.NoError(t, err)
					require.Len(t, got, 3<<20)
				}
				close(finish)
				_, err = waiting.Wait(testContext(t))
				require.NoError(t, err)
				for _, node := range []*qs.Node{n, s} {
					require.Zero(t, node.HG().Stats().NA.PeersLost)
				}
			})
		}
	})
}
