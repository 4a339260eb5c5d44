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
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// expiringFiles is files of a certificate that is renewed by issue, and of the authority that signs it.
type expiringFiles struct {
	cert, key, ca string
	authority     tls.Certificate
}

func newExpiringFiles(t *testing.T) *expiringFiles {
	dir := t.TempDir()
	f := &expiringFiles{filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca"), testcert.New()}
	replaceFile(t, f.ca, encodePEM(f.authority.Certificate[0]))
	return f
}

// issue puts a certificate into the files that is valid for a time, and returns when it expires.
func (f *expiringFiles) issue(t *testing.T, name string, lives time.Duration) time.Time {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := *f.authority.Leaf
	c.RawSubject = nil // Subject counts
	c.IsCA, c.Subject.CommonName, c.KeyUsage, c.NotAfter = false, name, x509.KeyUsageDigitalSignature, time.Now().Add(lives)
	der, err := x509.CreateCertificate(rand.Reader, &c, f.authority.Leaf, &private.PublicKey, f.authority.PrivateKey)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	replaceFile(t, f.cert, encodePEM(der))
	replaceFile(t, f.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return leaf.NotAfter
}

func (f *expiringFiles) load(t *testing.T) *tls.Config {
	t.Helper()
	cfg, err := qs.LoadTLS(f.cert, f.key, f.ca)
	require.NoError(t, err)
	return cfg
}

// eachTLS runs a test over the transports that have TLS.
func eachTLS(t *testing.T, test func(t *testing.T, scheme string)) {
	t.Parallel()
	for _, scheme := range []string{"tcp", "udp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			test(t, scheme)
		})
	}
}

// TestCertificateRenewed renews the certificates of both sides again and again, and lets them
// expire one after the other under load: calls with small input, and with large input that is sent
// separately from the request or is lent, and a call that lasts. None fails; each session retires,
// and ends.
func TestCertificateRenewed(t *testing.T) {
	eachTLS(t, func(t *testing.T, scheme string) {
		lives := 3 * time.Second // of which a machine that is busy may need most to renew it
		if raceflag.Enabled {
			lives *= 4
		}
		sessions := int64(1)
		if long.On {
			sessions = 4
		}
		ours, theirs := newExpiringFiles(t), newExpiringFiles(t)
		theirs.authority = ours.authority
		replaceFile(t, theirs.ca, encodePEM(ours.authority.Certificate[0]))
		ours.issue(t, "server", lives)
		theirs.issue(t, "client", lives)

		size := qs.Define[[]byte, int]("expiry/size")
		last := qs.Define[struct{}, struct{}]("expiry/last")
		finish := make(chan struct{})
		serving := quietConfig()
		serving.TLS = ours.load(t)
		s := serverAt(t, scheme+"://127.0.0.1:0", serving, func(n *qs.Node) {
			size.Handle(n, func(_ context.Context, b []byte) (int, error) { return len(b), nil })
			last.Handle(n, func(ctx context.Context, _ struct{}) (struct{}, error) {
				select {
				case <-finish:
					return struct{}{}, nil
				case <-ctx.Done():
					return struct{}{}, context.Cause(ctx)
				}
			})
		})
		calling := quietConfig()
		calling.TLS = theirs.load(t)
		n := open(t, scheme+"://", calling)
		to := peer(t, n, s.Addr().String())

		ctx, stop := context.WithCancel(testContext(t))
		defer stop()
		var callers sync.WaitGroup
		var made atomic.Int64
		for _, call := range []func() error{
			func() error { _, err := size.Call(context.Background(), to, make([]byte, 100)); return err },
			func() error { _, err := size.Call(context.Background(), to, make([]byte, 100<<10)); return err },
			func() error { _, err := size.Call(context.Background(), to, make([]byte, 6<<20)); return err },
		} {
			callers.Go(func() {
				for ctx.Err() == nil {
					if err := call(); err != nil {
						t.Errorf("a call failed: %v, %v", err, qs.FateOf(err))
						return
					}
					made.Add(1)
					_ = s.HG().Sleep(ctx, time.Millisecond)
				}
			})
		}
		lasting := make(chan error, 1)
		go func() {
			_, err := last.Call(context.Background(), to, struct{}{})
			lasting <- err
		}()
		retired := func() int64 { return n.HG().Stats().NA.PeersRetired }
		for retired() < sessions && !t.Failed() {
			ours.issue(t, "server", lives)
			theirs.issue(t, "client", lives)
			require.NoError(t, s.HG().Sleep(ctx, 100*time.Millisecond))
		}
		stop()
		callers.Wait()
		close(finish)
		require.NoError(t, <-lasting, "a call continues in the session that retires")
		ours.issue(t, "server", lives)
		theirs.issue(t, "client", lives)
		_, err := size.Call(context.Background(), to, nil)
		require.NoError(t, err, "a call in the session that follows")
		// That session also ends once its certificates have expired.
		require.Eventually(t, func() bool { return n.HG().Stats().NA.Peers <= 1 && s.HG().Stats().NA.Peers <= 1 }, 30*time.Second, 10*time.Millisecond,
			"what retires ends when nothing is under way")
		for _, node := range []*qs.Node{n, s} {
			require.Zero(t, node.HG().Stats().NA.PeersLost)
			require.GreaterOrEqual(t, node.HG().Stats().NA.PeersRetired, sessions)
		}
		t.Logf("%d calls in %d sessions", made.Load(), retired()+1)
	})
}

// TestCertificateExpires checks that without renewal calls fail from then on, NotRun, with an error
// that names the certificate, its subject and when it has expired: that of the server, and that of
// the client. Calls in flight end when Config.CertificateGrace is over.
func TestCertificateExpires(t *testing.T) {
	eachTLS(t, func(t *testing.T, scheme string) {
		for _, role := range []string{"server", "client"} {
			t.Run(role, func(t *testing.T) {
				t.Parallel()
				ours, theirs := newExpiringFiles(t), newExpiringFiles(t)
				theirs.authority = ours.authority
				replaceFile(t, theirs.ca, encodePEM(ours.authority.Certificate[0]))
				files := map[string]*expiringFiles{"server": ours, "client": theirs}
				for name, f := range files {
					if name != role {
						f.issue(t, name, time.Hour)
					}
				}
				end := files[role].issue(t, role, time.Minute) // LoadTLS needs one

				started := make(chan struct{})
				serving := quietConfig()
				serving.TLS, serving.CertificateGrace = ours.load(t), 300*time.Millisecond
				serving.PeerTimeout = time.Second
				hang := qs.Define[struct{}, struct{}]("expiry/hang")
				s := serverAt(t, scheme+"://127.0.0.1:0", serving, func(n *qs.Node) {
					whoami.Handle(n, func(ctx context.Context, _ struct{}) (string, error) { return qs.CallerFrom(ctx).Name, nil })
					hang.Handle(n, func(ctx context.Context, _ struct{}) (struct{}, error) {
						close(started)
						<-ctx.Done()
						return struct{}{}, context.Cause(ctx)
					})
				})
				calling := serving
				calling.TLS = theirs.load(t)
				n := open(t, scheme+"://", calling)
				to := peer(t, n, s.Addr().String())
				var err error
				require.Eventually(t, func() bool { // on a machine that is busy it may expire before the first call
					end = files[role].issue(t, role, 2*time.Second)
					_, err = whoami.Call(testContext(t), to, struct{}{})
					return err == nil
				}, 30*time.Second, 10*time.Millisecond, "%v", err)
				hanging := make(chan error, 1)
				go func() {
					_, err := hang.Call(context.Background(), to, struct{}{})
					hanging <- err
				}()
				<-started

				for err == nil && time.Since(end) < 30*time.Second { // it ends with the certificate
					_, err = whoami.Call(testContext(t), to, struct{}{})
				}
				require.Error(t, err, "a session outlives its certificate")
				require.False(t, time.Now().Before(end), "not before its end: %v", err)
				require.Equal(t, qs.NotRun, qs.FateOf(err), "%v", err)
				require.ErrorContains(t, err, "expired")
				require.ErrorContains(t, err, "CN="+role)
				require.ErrorContains(t, err, end.UTC().Format(time.RFC3339))

				err = <-hanging
				require.ErrorIs(t, err, qs.ErrPeerLost)
				require.Equal(t, qs.MaybeRan, qs.FateOf(err))
				require.Eventually(t, func() bool { return n.HG().Stats().NA.Peers == 0 }, 30*time.Second, 10*time.Millisecond)

				files[role].issue(t, role, time.Hour)
				require.Eventually(t, func() bool {
					_, err = whoami.Call(testContext(t), to, struct{}{})
					return err == nil
				}, 30*time.Second, 10*time.Millisecond, "it is renewed late: %v", err)
			})
		}
	})
}

// TestHandshakeBetweenTwoFiles checks that a handshake that begins between the replacement of a
// certificate and that of its key waits for the key if the certificate before has expired, and uses
// that one if there is no key in time.
func TestHandshakeBetweenTwoFiles(t *testing.T) {
	t.Parallel()
	f, next := newExpiringFiles(t), newExpiringFiles(t)
	next.authority = f.authority
	synctest.Test(t, func(t *testing.T) {
		f.issue(t, "server", time.Second)
		next.issue(t, "server", time.Hour)
		cfg := f.load(t)
		certificate := func() chan *tls.Certificate {
			got := make(chan *tls.Certificate, 1)
			go func() {
				c, err := cfg.GetCertificate(nil)
				if err != nil {
					t.Error(err)
				}
				got <- c
			}()
			synctest.Wait()
			return got
		}
		first := <-certificate()
		copyFile(t, next.cert, f.cert)
		require.Same(t, first, <-certificate(), "it has not expired, and is not waited with")

		<-time.NewTimer(2 * time.Second).C
		before := time.Now()
		require.Same(t, first, <-certificate(), "no key arrives")
		require.GreaterOrEqual(t, time.Since(before), time.Second)

		got := certificate()
		require.Empty(t, got, "the key is waited for")
		copyFile(t, next.key, f.key)
		require.True(t, (<-got).Leaf.NotAfter.After(time.Now()))
	})
}

// copyFile replaces a file by another one.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	replaceFile(t, to, b)
}
