package tcp_test

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// TestTruncatedMessages checks that no truncated frame or packet ends a listener, in plain and inside TLS;
// others are served meanwhile and afterwards.
func TestTruncatedMessages(t *testing.T) {
	ca := newAuthority(t, "cluster")
	for name, cfg := range map[string]*tls.Config{"plain": nil, "TLS": ca.mutual(ca.issue("both", nil))} {
		t.Run(name, func(t *testing.T) {
			eachCarrier(t, func(t *testing.T, opts tcp.Options) {
				b := open(t, "tcp://127.0.0.1:0", withTLS(opts, cfg), na.Config{}, 1)
				a := open(t, "tcp://", opts, na.Config{}, 1)
				plain := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
				via, session := beginnings.Record(t, "tcp", hostPort(plain))
				to := lookup(t, a, "tcp://"+via)
				for range 3 {
					sendUnexpected(t, a.ctx(), to, 1, "recorded", a, plain)
					recvUnexpected(t, plain.ctx(), a, plain)
				}
				recorded := session()
				require.NotEmpty(t, recorded)

				stop := startDriver(b)
				dial := func() (net.Conn, error) { return net.Dial("tcp", hostPort(b)) }
				beginnings.Send(t, dial, recorded)
				if cfg != nil {
					beginnings.SendSessions(t, func() (net.Conn, error) { return tls.Dial("tcp", hostPort(b), raw13(cfg)) }, recorded)
				}
				stop()
				c := open(t, "tcp://", withTLS(opts, cfg), na.Config{}, 1)
				sendUnexpected(t, c.ctx(), b.cls.Addr(), 1, "served", b, c)
			})
		})
	}
}
