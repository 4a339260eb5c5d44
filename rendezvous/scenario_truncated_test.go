package rendezvous_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// TestTruncatedMessages checks that no truncated message of any protocol ends a server, which then serves
// its member.
func TestTruncatedMessages(t *testing.T) {
	key := uint64(42)
	for name, c := range map[string]struct {
		form protocol.Form
		auth protocol.Auth
		tls  bool
	}{
		"native": {auth: secret},
		"strict": {form: protocol.Strict, auth: protocol.Auth{Key: &key}},
		"TLS":    {auth: secret, tls: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := rendezvous.ServerConfig{Form: c.form, Size: 1, Auth: c.auth}
			member := rendezvous.Config{Form: c.form, Auth: c.auth}
			recorded := startServer(t, server)
			via, session := beginnings.Record(t, "tcp", recorded.addr)
			member.Addr = via
			require.NoError(t, runMember(testContext(t), member))
			require.NoError(t, recorded.end(t))
			sessions := [][][]byte{session()}
			if c.form == protocol.Strict { // what is whole is a member
				sessions[0] = sessions[0][:1]
				sessions[0][0] = sessions[0][0][:len(sessions[0][0])/2]
			}

			if c.tls {
				server.TLS, member.TLS = serverTLS(t), clientTLS(t)
			}
			h := startServer(t, server)
			beginnings.Send(t, func() (net.Conn, error) { return net.Dial("tcp", h.addr) }, sessions...)
			member.Addr = h.addr
			require.NoError(t, runMember(testContext(t), member))
			require.NoError(t, h.end(t))
		})
	}
}
