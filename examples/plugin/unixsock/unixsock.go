package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/carrier/streamnet"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// maxPath is the maximum length of a socket path that all systems support, in bytes.
const maxPath = 100

// New returns the plugin.
func New() carrier.Plugin {
	return streamnet.New(streamnet.Options{
		Scheme: "unix",
		Dial: func(ctx context.Context, path string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		Listen: listen,
		Check:  check,
		// Every peer is on this machine, and so is the name that it claims.
		Verify: func(net.Conn, string) bool { return true },
	})
}

// check implements streamnet.Options.Check. Each socket has exactly one name, because another spelling of its path
// would denote another peer.
func check(path string) error {
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return errors.New("is not an absolute path in its shortest form")
	case len(path) > maxPath:
		return fmt.Errorf("has a path of %d bytes, want %d at most", len(path), maxPath)
	}
	return nil
}

// listen implements streamnet.Options.Listen.
func listen(path string) (net.Listener, string, error) {
	if err := check(path); err != nil {
		return nil, "", codes.WithText(codes.ErrInvalid, err.Error())
	}
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && isAbandoned(path) && os.Remove(path) == nil {
		l, err = net.Listen("unix", path)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, "", codes.WithText(codes.ErrAddrInUse, err.Error())
	case errors.Is(err, fs.ErrPermission):
		return nil, "", codes.WithText(codes.ErrPermission, err.Error())
	case err != nil:
		return nil, "", err
	}
	return l, path, nil
}

// isAbandoned reports whether path is a socket without a listener, left by a process that was killed.
func isAbandoned(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
