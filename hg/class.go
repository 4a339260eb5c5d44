package hg

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Class represents this process in a network, and holds the registry of its RPCs. Its methods may
// be called from any goroutine.
type Class struct {
	cfg  Config
	na   *na.Class
	rpcs registry
	slow sync.Map // *RPC to true: RPCs whose inline handlers were logged as slow

	mu       sync.Mutex // guards contexts
	contexts []*Context
}

// Open opens the network of addr: "tcp://" for an origin only, "tcp://host:port" for a target too.
// The program has to link the transport in by importing its plugin, or plugins/all. Call Close or
// Shutdown when the class is no longer used.
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

// logger returns the logger of the class.
func (c *Class) logger() *slog.Logger {
	if c.cfg.Logger != nil {
		return c.cfg.Logger
	}
	return slog.Default()
}

// NA returns the class of the network abstraction below. Its Shutdown does not wait for handlers:
// use the Shutdown of c.
func (c *Class) NA() *na.Class { return c.na }

// Addr returns the address of context 0, by which targets are reached.
func (c *Class) Addr() na.Addr { return c.na.Addr() }

// NewContext makes a context. Its id is the number of contexts made before.
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

// Contexts returns the contexts of c. The slice is the caller's.
func (c *Class) Contexts() []*Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.contexts)
}

// Close closes every context. It does not block and may be called anywhere, also inside callbacks.
// Operations in flight end with ErrClosed; their callbacks run in Trigger of their contexts.
// NA().Closed reports true once all of these have returned and all loans and leases have ended.
func (c *Class) Close() error { return c.na.Close() }
