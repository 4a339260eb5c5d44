package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Client calls the store. It follows redirects to the leader, and waits while there is no leader.
// It is safe for concurrent use.
type Client struct {
	node    *qs.Node
	servers func() []string // returns the addresses of the servers
	timeout time.Duration   // timeout of one attempt at one server

	mu     sync.Mutex // guards the fields below
	leader string     // address of the last known leader, or ""
	peers  map[string]qs.Peer
}

// NewClient returns a Client for the servers whose addresses the servers function returns.
func NewClient(node *qs.Node, servers func() []string) *Client {
	return &Client{node: node, servers: servers, timeout: attemptTimeout, peers: map[string]qs.Peer{}}
}

const (
	attemptTimeout = 2 * time.Second
	retryPause     = 20 * time.Millisecond // pause before the next attempt
)

// Put sets or deletes a key. If it fails, qs.FateOf reports whether the write may have been
// applied.
func (c *Client) Put(ctx context.Context, in PutIn) (index uint64, err error) {
	return callLeader(ctx, c, Put, in, func(err error) bool { return qs.FateOf(err) == qs.NotRun })
}

// Get reads a key.
func (c *Client) Get(ctx context.Context, in GetIn) (GetOut, error) {
	return callLeader(ctx, c, Get, in, func(error) bool { return true })
}

// Join requests that the leader add a server.
func (c *Client) Join(ctx context.Context, name string) error {
	_, err := callLeader(ctx, c, Join, name, func(error) bool { return true })
	return err
}

// Remove requests that the leader remove a server.
func (c *Client) Remove(ctx context.Context, name string) error {
	_, err := callLeader(ctx, c, Remove, name, func(error) bool { return true })
	return err
}

// callLeader calls a method at the leader. It retries until ctx is done, as long as canRetry allows
// that for the error.
func callLeader[In, Out any](
	ctx context.Context, c *Client, m *qs.Method[In, Out], in In, canRetry func(error) bool,
) (out Out, err error) {
	for {
		addr, noServer := c.pickServer()
		if noServer == nil {
			attempt, stop := context.WithTimeout(ctx, c.timeout)
			var peer qs.Peer
			if peer, err = c.peer(attempt, addr); err == nil {
				out, err = m.Call(attempt, peer, in)
			}
			stop()
			if err == nil {
				c.setLeader(addr)
				return out, nil
			}
			to, _ := qs.DetailOf[Redirect](err)
			c.setLeader(to.Leader)
			if !canRetry(err) || errors.Is(err, errDiffers) {
				return out, err
			}
		} else {
			err = noServer
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

// pickServer returns the address of the leader, or of a random server if none is known.
func (c *Client) pickServer() (string, error) {
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

// setLeader stores the leader's address, or "" if there is no known leader.
func (c *Client) setLeader(addr string) {
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
