package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Client calls the store: it follows redirects to the leader, and waits while there is none. Its methods may be called from any goroutine.
type Client struct {
	node    *qs.Node
	servers func() []string // addresses
	attempt time.Duration   // at one server

	mu     sync.Mutex // guards the fields below
	leader string
	peers  map[string]qs.Peer
}

// NewClient returns a Client of the servers at the addresses that servers returns.
func NewClient(node *qs.Node, servers func() []string) *Client {
	return &Client{node: node, servers: servers, attempt: attemptTimeout, peers: map[string]qs.Peer{}}
}

const (
	attemptTimeout = 2 * time.Second
	retryPause     = 20 * time.Millisecond // before another attempt
)

// Put sets, or deletes, a key. The error's fate, qs.FateOf, says whether that may have happened.
func (c *Client) Put(ctx context.Context, in PutIn) (index uint64, err error) {
	return atLeader(ctx, c, Put, in, func(err error) bool { return qs.FateOf(err) == qs.NotRun })
}

// Get reads a key.
func (c *Client) Get(ctx context.Context, in GetIn) (GetOut, error) {
	return atLeader(ctx, c, Get, in, func(error) bool { return true })
}

// Join has the leader take a server in, and Remove has it take one out.
func (c *Client) Join(ctx context.Context, name string) error {
	_, err := atLeader(ctx, c, Join, name, func(error) bool { return true })
	return err
}

func (c *Client) Remove(ctx context.Context, name string) error {
	_, err := atLeader(ctx, c, Remove, name, func(error) bool { return true })
	return err
}

// atLeader calls a method at the leader, again as long as ctx allows and the error may be repeated.
func atLeader[In, Out any](ctx context.Context, c *Client, m *qs.Method[In, Out], in In, again func(error) bool) (out Out, err error) {
	for {
		addr, found := c.target()
		if found == nil {
			attempt, stop := context.WithTimeout(ctx, c.attempt)
			var peer qs.Peer
			if peer, err = c.peer(attempt, addr); err == nil {
				out, err = m.Call(attempt, peer, in)
			}
			stop()
			if err == nil {
				c.lead(addr)
				return out, nil
			}
			to, _ := qs.DetailOf[Redirect](err)
			c.lead(to.Leader)
			if !again(err) || errors.Is(err, errDiffers) {
				return out, err
			}
		} else {
			err = found
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return out, errors.Join(context.Cause(ctx), err)
		}
	}
}

// target returns the address of the leader, or of any server.
func (c *Client) target() (string, error) {
	c.mu.Lock()
	leader := c.leader
	c.mu.Unlock()
	if leader != "" {
		return leader, nil
	}
	all := c.servers()
	if len(all) == 0 {
		return "", qs.Errorf(qs.ErrUnavailable, "no server is known")
	}
	return all[rand.IntN(len(all))], nil
}

// lead keeps the address of the leader; "" for none.
func (c *Client) lead(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = addr
}

// peer returns the Peer of a server.
func (c *Client) peer(ctx context.Context, addr string) (qs.Peer, error) {
	c.mu.Lock()
	p, ok := c.peers[addr]
	c.mu.Unlock()
	if ok {
		return p, nil
	}
	p, err := c.node.Peer(ctx, addr)
	if err == nil {
		c.mu.Lock()
		c.peers[addr] = p
		c.mu.Unlock()
	}
	return p, err
}
