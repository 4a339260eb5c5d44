package hg

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Class represents this process in a network and holds its RPC registry. Its methods are safe for
// concurrent use.
type Class struct {
	cfg  Config
	na   *na.Class
	rpcs registry
	slow sync.Map // *RPC → true: RPCs with inline handlers already logged as slow

	mu       sync.Mutex // guards contexts
	contexts []*Context
}

// Open returns a Class that uses the transport of addr: "tcp://" for a process that only makes
// calls, or "tcp://host:port" for one that also serves them. The program must link the transport by importing its plugin or
// plugins/all. The caller must call Close or Shutdown when the class is no longer needed.
func Open(addr string, cfg Config) (*Class, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cls := &Class{cfg: cfg}
	cls.rpcs.init()
	if err := cls.registerBuiltIn(); err != nil {
		return nil, err
	}
	if cls.na, err = na.Open(addr, cfg.NA); err != nil {
		return nil, err
	}
	cls.na.UseMessages(oldestWire, wireVersion, requestToOlder)
	if cfg.opened != nil {
		cfg.opened(cls)
	}
	return cls, nil
}

// logger returns the class's logger.
func (c *Class) logger() *slog.Logger {
	if c.cfg.Logger != nil {
		return c.cfg.Logger
	}
	return slog.Default()
}

// NA returns the underlying class of package na. The caller must use c.Shutdown instead of the
// Shutdown method of the na.Class, which does not wait for handlers.
func (c *Class) NA() *na.Class { return c.na }

// Addr returns the address of context 0, through which targets are reached.
func (c *Class) Addr() na.Addr { return c.na.Addr() }

// NewContext creates a context. The first context of a class has ID 0, and each later one has the
// next higher ID.
func (c *Class) NewContext() (*Context, error) {
	nctx, err := c.na.NewContext()
	if err != nil {
		return nil, err
	}
	hctx := newContext(c, nctx)
	c.mu.Lock()
	c.contexts = append(c.contexts, hctx)
	c.mu.Unlock()
	return hctx, nil
}

// Contexts returns the contexts of c. The caller owns the returned slice.
func (c *Class) Contexts() []*Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.contexts)
}

// Close closes every context. It does not block and may be called from anywhere, including
// callbacks. Operations in flight complete with ErrClosed, and their callbacks run in the Trigger
// of their contexts. NA().Closed reports true once all of these callbacks have returned and all
// loans and leases have ended.
func (c *Class) Close() error { return c.na.Close() }
