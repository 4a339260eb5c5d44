package hg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/within"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Class is this process's membership of a network, with the RPCs that it knows.
type Class struct {
	cfg  Config
	na   *na.Class
	rpcs registry

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
	if cls.na, err = na.Open(addr, cfg.NA); err != nil {
		return nil, err
	}
	return cls, nil
}

// NA returns the class of the network abstraction below.
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

// Close closes every context. It does not wait and may be called anywhere, callbacks included: what is canceled by it is
// heard of in Trigger of each context, with ErrClosed.
func (c *Class) Close() error { return c.na.Close() }

// Closed tells whether every callback has run and everything has been given back after Close.
func (c *Class) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, hctx := range c.contexts {
		if !hctx.Closed() {
			return false
		}
	}
	return c.na.Closed()
}

// Shutdown closes c and drives all its contexts until they are drained. It returns the cause of ctx, with what was
// left, when ctx ends first. Inside a callback or handler it returns an error at once: it could never end.
func (c *Class) Shutdown(ctx context.Context) error {
	if within.Trigger() {
		return fmt.Errorf("hg: shutdown: called inside a callback, which it would wait for; use Close: %w", ErrBusy)
	}
	_ = c.Close()
	c.mu.Lock()
	contexts := c.contexts
	c.mu.Unlock()
	for _, hctx := range contexts {
		stop := context.AfterFunc(ctx, hctx.nctx.Rouse)
		err := hctx.drain(ctx)
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Context) drain(ctx context.Context) error {
	over := func() bool { return ctx.Err() != nil || c.Closed() }
	for !c.Closed() {
		if ctx.Err() != nil {
			return fmt.Errorf("hg: shutdown: context %d has %d operations left: %w", c.ID(), c.nctx.Live(), context.Cause(ctx))
		}
		c.Trigger(0)
		if err := c.ProgressUntil(time.Second, over); err != nil && !errors.Is(err, ErrTimeout) {
			break
		}
	}
	c.Trigger(0)
	return nil
}
