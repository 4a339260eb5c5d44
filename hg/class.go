package hg

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Class is this process's membership of a network, with the RPCs that it knows.
type Class struct {
	cfg  Config
	na   *na.Class
	rpcs registry
	slow sync.Map // *RPC: those whose inline handlers were found to be slow

	mu       sync.Mutex // guards contexts
	contexts []*Context
}

// Open opens the network that addr names: "tcp://" for an origin only, "tcp://host:port" to be a target too. The
// program links the transport in by importing its plugin, or plugins/all.
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

// logger returns where the class logs.
func (c *Class) logger() *slog.Logger {
	if c.cfg.Logger != nil {
		return c.cfg.Logger
	}
	return slog.Default()
}

// NA returns the class of the network abstraction below. Its Shutdown knows nothing of handlers: that of c does.
func (c *Class) NA() *na.Class { return c.na }

// Addr returns the address by which targets are reached: that of context 0.
func (c *Class) Addr() na.Addr { return c.na.Addr() }

// NewContext makes the next context; its id is the number of those made before.
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

// Contexts returns the contexts of c.
func (c *Class) Contexts() []*Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.contexts)
}

// Close closes every context. It does not wait and may be called anywhere, callbacks included. Operations under way end with
// ErrClosed; their callbacks run in Trigger of their contexts. When all of these have returned and everything has been given back,
// NA().Closed reports true.
func (c *Class) Close() error { return c.na.Close() }
