package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// TestStallEndsWithRoom: a peer that took something between two looks is not late, although its socket is as full as before.
func TestStallEndsWithRoom(t *testing.T) {
	const limit = 10 * time.Second
	for name, poll := range map[string]func(c *conn) na.Pollable{
		"connection": func(c *conn) na.Pollable { return c },
		"lane":       func(c *conn) na.Pollable { c.lane = true; return (*laneFD)(c) },
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) }()
			_, err = unix.Write(fds[0], make([]byte, 1000)) // stays there
			require.NoError(t, err)

			ca := &polled{d: &domain{opts: Options{WriteTimeout: limit}}, e: &engine.Endpoint{}}
			c := &conn{ca: ca, fd: fds[0], blocked: true, stall: &stall{}}
			c.writing = true // another goroutine is to fill the socket
			ca.stalled.conns = []*conn{c}
			now := time.Duration(0)
			look := func() {
				now += limit / 10
				ca.lookAfter(now)
			}
			for range 5 {
				look()
			}
			require.Equal(t, limit/2, c.stall.since)
			for range 20 {
				poll(c).Ready(false, true)
				c.blocked = true // it has
				look()
				require.Equal(t, limit/10, c.stall.since)
			}
		})
	}
}
