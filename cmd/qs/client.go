package main

import (
	"context"
	"errors"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A client is an origin with one target.
type client struct {
	node *qs.Node
	hctx *hg.Context // of the node
	peer na.Addr
}

func dial(n *network, addr string) (*client, error) {
	if _, err := parseAddr(addr); err != nil {
		return nil, err
	}
	cfg, err := n.config(addr)
	if err != nil {
		return nil, err
	}
	node, err := qs.Open(n.to(addr), qs.Config{HG: cfg})
	if err != nil {
		return nil, err
	}
	peer, err := node.HG().LookupWait(context.Background(), addr)
	if err == nil {
		_, err = node.HG().Class().Register(inspect.GaugesRPC, nil)
	}
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	return &client{node, node.HG(), peer}, nil
}

// close ends everything that is under way; no peer can delay it.
func (c *client) close() { _ = c.node.Close() }

// parseAddr parses an argument that is the address of a program.
func parseAddr(text string) (na.Addr, error) {
	addr, err := na.ParseAddr(text)
	if err != nil {
		return addr, usageError{err.Error()}
	}
	return addr, nil
}
