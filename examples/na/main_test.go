package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestNA(t *testing.T) {
	for _, transport := range []string{"tcp", "udp", "sm"} {
		t.Run(transport, func(t *testing.T) {
			if transport == "sm" && runtime.GOOS != "linux" {
				t.Skip("sm is for Linux only")
			}
			var out strings.Builder
			run(&out, transport)
			t.Log(out.String())
			lines := strings.Split(out.String(), "\n")
			addr, listens := strings.CutPrefix(lines[0], "target: listens at ")
			require.True(t, listens, lines[0])
			require.Regexp(t, "^"+transport+"://.", addr)
			require.Equal(t, []string{
				"origin: the target is " + addr,
				"target: unexpected message with tag 1: Ada",
				"origin: expected message with tag 1: hello, Ada",
				"target: got quicksilver",
				"target: put QUICKSILVER",
				"origin: the memory is QUICKSILVER, and registered regions: 0",
				"origin: callbacks run: 1, canceled: true, busy: false",
				"origin: the same operation has received: ready",
				"target: the receive has ended: na: receive unexpected: closed",
				"",
			}, lines[1:])
		})
	}
}

func TestMain(m *testing.M) { leak.Main(m) }
