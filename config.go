package quicksilver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all" // every transport
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// A Config says how a node is opened. The zero value works.
type Config struct {
	// TLS has every connection of "tcp://" use TLS 1.3: one configuration for both roles. Nil means no TLS. Both
	// sides must agree.
	TLS *tls.Config
	// PeerTimeout is how long a peer may be silent while calls wait for it or are handled for it. Zero means 5 s; at least 500 ms.
	PeerTimeout time.Duration
	// Workers bounds the handlers that run at once; 0 means HG.MaxActive. A handler that waits for another one of this node
	// needs a worker free for it.
	Workers int
	// Grace bounds how long Serve and Shutdown let what is under way end. Zero means 10 s, negative not at all.
	Grace time.Duration
	// Contexts is how many contexts, with a goroutine each in Serve, share the port, for machines with many cores: 0 is one. Peers
	// are spread over them: each always reaches the same one, and answers and calls back leave by that. Calls to one Peer always
	// leave by the same context. On "tcp://" only: over other transports open a Node with an address of its own for each core.
	Contexts int
	// Reflect tells peers what n serves, with the types of input and output: for "qs rpcs".
	Reflect bool
	// Client wraps calls, Server wraps handlers. The first is the outermost.
	Client, Server []Interceptor
	// HG is the configuration of the layers below: limits, Authorize, Observe, Logger, Codec. The node sets its Dispatch,
	// and the rest as the fields above say.
	HG hg.Config
}

// withDefaults returns c, complete, for a node at addr.
func (c Config) withDefaults(addr string) (Config, error) {
	scheme, _, _ := strings.Cut(addr, "://")
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("quicksilver: config: "+format+": %w", append(args, hg.ErrInvalid)...))
	}
	if c.Workers < 0 {
		bad("Workers is %d, want a number of handlers, or 0 for HG.MaxActive", c.Workers)
	}
	if c.Contexts < 0 || c.Contexts > 256 {
		bad("Contexts is %d, want 1 to 256, or 0 for 1", c.Contexts)
	}
	if c.Contexts > 1 && scheme != "tcp" {
		bad("Contexts is %d, but several share an address on tcp:// only, not on %q; open a Node for each, at addresses of their own",
			c.Contexts, addr)
	}
	if c.TLS != nil && scheme != "tcp" {
		bad("TLS is for tcp://, not %q", addr)
	}
	if c.HG.Dispatch != nil {
		bad("HG.Dispatch is set, but handlers run as Workers says; use package hg")
	}
	for _, i := range append(c.Client[:len(c.Client):len(c.Client)], c.Server...) {
		if i == nil {
			bad("an interceptor is nil")
			break
		}
	}
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	if c.Contexts == 0 {
		c.Contexts = 1
	}
	if c.Workers == 0 {
		c.Workers = c.HG.MaxActive
	}
	if c.Workers == 0 {
		c.Workers = 1024
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	c.HG.Reflect = c.HG.Reflect || c.Reflect
	if c.PeerTimeout != 0 {
		c.HG.NA.PeerTimeout = c.PeerTimeout
	}
	if c.TLS != nil || c.Contexts > 1 {
		c.HG.NA.Contexts = max(c.HG.NA.Contexts, c.Contexts)
		opts := tcp.Options{TLS: c.TLS}
		if c.Contexts > 1 {
			opts.ReusePort, opts.Spread = runtime.GOOS != "windows", c.Contexts // Windows cannot share a port safely: one socket does
		}
		own := tcp.New(opts)
		c.HG.NA.Plugins = append(c.HG.NA.Plugins[:len(c.HG.NA.Plugins):len(c.HG.NA.Plugins)], own)
	}
	return c, nil
}
