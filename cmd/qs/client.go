package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A client is an origin with one target. A goroutine of its own moves its bytes and runs its callbacks, so that the others
// can wait for answers, disks and each other.
type client struct {
	class   *hg.Class
	hctx    *hg.Context
	peer    na.Addr
	timeout time.Duration // of one call
	driven  chan struct{} // closed when that goroutine has ended
}

func dial(n *network, addr string, timeout time.Duration, rpcs []string) (*client, error) {
	peer, err := na.ParseAddr(addr)
	if err != nil {
		return nil, err
	}
	cfg, err := n.config()
	if err != nil {
		return nil, err
	}
	class, err := hg.Open(peer.Scheme()+"://", cfg)
	if err != nil {
		return nil, err
	}
	for _, name := range rpcs {
		if _, err := class.Register(name, nil); err != nil {
			return nil, err
		}
	}
	hctx, err := class.NewContext()
	if err != nil {
		return nil, err
	}
	c := &client{class: class, hctx: hctx, peer: peer, timeout: timeout, driven: make(chan struct{})}
	go c.drive()
	return c, nil
}

func (c *client) drive() {
	defer close(c.driven)
	for c.hctx.Progress(-1) == nil {
		c.hctx.Trigger(0)
	}
}

// close ends everything that is under way and waits for that; no peer can delay it.
func (c *client) close() {
	_ = c.class.Close()
	<-c.driven
}

// A pending is a call that has been forwarded.
type pending struct {
	c    *client
	rpc  string
	h    *hg.Handle
	done chan error
}

// forward calls rpc without waiting.
func (c *client) forward(rpc string, in any) (*pending, error) {
	b, err := encode(in)
	if err != nil {
		return nil, err
	}
	h, err := c.hctx.Create(c.peer, hg.HashName(rpc))
	if err != nil {
		return nil, err
	}
	p := &pending{c, rpc, h, make(chan error, 1)}
	if err := h.ForwardRaw(b, func(_ *hg.Handle, err error) { p.done <- err }); err != nil {
		h.Close()
		return nil, err
	}
	return p, nil
}

// wait waits for the answer, and cancels the call when ctx ends or there is none in time.
func (p *pending) wait(ctx context.Context, out any) error {
	defer p.h.Close()
	ctx, stop := context.WithTimeoutCause(ctx, p.c.timeout, fmt.Errorf("%s answers no %s for %v: %w", p.c.peer, p.rpc,
		p.c.timeout, na.ErrTimeout))
	defer stop()
	var err error
	select {
	case err = <-p.done:
	case <-ctx.Done():
		p.h.Cancel()
		if err = <-p.done; err != nil {
			return context.Cause(ctx)
		}
	}
	if err != nil {
		return p.c.explain(err)
	}
	b, err := p.h.OutputRaw()
	if err == nil && out != nil {
		err = decode(b, out)
	}
	return err
}

func (c *client) call(ctx context.Context, rpc string, in, out any) error {
	p, err := c.forward(rpc, in)
	if err != nil {
		return err
	}
	return p.wait(ctx, out)
}

// explain leaves of an error what the user of a command can use.
func (c *client) explain(err error) error {
	remote, ok := errors.AsType[*hg.RemoteError](err)
	switch {
	case errors.Is(err, hg.ErrUnreachable):
		return unreachable(c.peer, err)
	case ok && remote.Code == hg.ErrNoEntry && remote.Text == "":
		return fmt.Errorf("%s is no qs serve, or one of another version: %w", c.peer, err)
	case ok:
		return hg.Errorf(remote.Code, "%s: %w", c.peer, remote) // between the two ends of qs codes mean the same
	}
	return err
}

func unreachable(peer na.Addr, err error) error {
	return fmt.Errorf("%s cannot be reached; is qs serve running there? Both need TLS (-cert, -key, -ca), or neither: %w", peer, err)
}
