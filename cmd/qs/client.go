package main

import (
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A client is an origin with one target. A goroutine of its own moves its bytes and runs its callbacks, so that the others
// can wait for answers, disks and each other.
type client struct {
	class  *hg.Class
	hctx   *hg.Context
	peer   na.Addr
	driven chan struct{} // closed when that goroutine has ended
}

func dial(n *network, addr string) (*client, error) {
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
	if _, err := class.Register(hg.GaugesRPC, nil); err != nil {
		return nil, err
	}
	hctx, err := class.NewContext()
	if err != nil {
		return nil, err
	}
	c := &client{class: class, hctx: hctx, peer: peer, driven: make(chan struct{})}
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
