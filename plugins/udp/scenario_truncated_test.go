package udp_test

import (
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// TestTruncatedMessages checks that no truncated packet ends a node, in plain and with TLS; others are
// served afterwards.
func TestTruncatedMessages(t *testing.T) {
	for name, cfg := range map[string]*tls.Config{"plain": nil, "TLS": mutualTLS()} {
		t.Run(name, func(t *testing.T) {
			eachSocket(t, func(t *testing.T, opts udp.Options) {
				opts = withTLS(opts, cfg)
				a, b := open(t, "udp://", opts, 1), open(t, "udp://127.0.0.1:0", opts, 1)
				at := strings.TrimPrefix(b.cls.Addr().Name(), "udp://")
				way, err := relay.New(netip.MustParseAddrPort(at), relay.Rules{})
				require.NoError(t, err)
				var mu sync.Mutex
				var session [][]byte
				way.Watch(func(d []byte, fromTarget bool) {
					mu.Lock()
					defer mu.Unlock()
					if !fromTarget {
						session = append(session, slices.Clone(d))
					}
				})
				for range 3 {
					sendMessage(t, a.ctxs[0], na.MakeAddr("udp://"+way.Addr().String(), 0), b.ctxs[0], "recorded", a, b)
				}
				way.Close()
				require.NotEmpty(t, session)
				beginnings.Send(t, func() (net.Conn, error) { return net.Dial("udp", at) }, session)
				c := open(t, "udp://", opts, 1)
				sendMessage(t, c.ctxs[0], b.cls.Addr(), b.ctxs[0], "served", b, c)
			})
		})
	}
}
