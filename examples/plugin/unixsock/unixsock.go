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

// maxPath is how long the path of a socket may be on every system, in bytes.
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
		// Every peer is on this machine, as the name that it claims is.
		Verify: func(net.Conn, string) bool { return true },
	})
}

// check implements streamnet.Options.Check. One socket has one name: another spelling of the path would be another peer.
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

// isAbandoned reports whether path is a socket on which nobody listens any more: its process was killed.
func isAbandoned(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
