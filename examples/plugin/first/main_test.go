package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
)

func TestConformance(t *testing.T) {
	natest.TestPlugin(t, func(t testing.TB) natest.Network {
		dir := t.TempDir()
		return natest.Network{
			Listen:     func(n int) string { return fmt.Sprintf("unix://%s/%d", dir, n) },
			Origin:     "unix://",
			Nobody:     "unix:///nobody/listens/here",
			Plugins:    []na.Plugin{unix},
			Concurrent: true,
			Assisted:   true,
		}
	}, nil)
}

// TestMainCalls checks that the program of the page runs.
func TestMainCalls(t *testing.T) {
	_ = os.Remove("/tmp/greet.sock")
	t.Cleanup(func() { _ = os.Remove("/tmp/greet.sock") })
	main()
}
