package mercury

import (
	"context"
	"crypto/rand"
	"encoding/binary"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A checksumState is what is known of the headers that a peer's library reads.
type checksumState uint8

const (
	sumsUnknown checksumState = iota
	sumsOff
	sumsOn
)

// checksums reports whether requests to the peer have the longer header. The first call to a peer that has sent none itself asks.
func (c *conn) checksums(ctx context.Context) (bool, error) {
	for {
		c.mu.Lock()
		state, probing := c.sums, c.probing
		if state == sumsUnknown && probing == nil {
			probing = make(chan struct{})
			c.probing = probing
			go c.probe(probing)
		}
		c.mu.Unlock()
		if state != sumsUnknown {
			return state == sumsOn, nil
		}
		select {
		case <-probing:
		case <-ctx.Done():
			return false, ended(ctx, "the peer does not answer a request of an unknown RPC, by which its checksums are found: set Config.Checksums")
		case <-c.done:
			return false, c.ended()
		}
	}
}

// probe sends a request of an RPC that nobody has. Both builds of C answer it, and the answer's flags show which one it is. It goes on
// until the peer answers, the connection ends, or Config.SetupTimeout has passed and the next call asks again.
func (c *conn) probe(probing chan struct{}) {
	ctx, cancel := context.WithTimeout(c.ctx, c.n.cfg.SetupTimeout)
	defer cancel()
	var b [8]byte
	_, _ = rand.Read(b[:])
	_, _, _ = c.call(ctx, hgwire.Nameless(binary.LittleEndian.Uint64(b[:])|1<<63), nil, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = nil
	close(probing)
}

// saw notes what a peer's message says of its build.
func (c *conn) saw(checksums bool) {
	state := sumsOff
	if checksums {
		state = sumsOn
	}
	c.mu.Lock()
	if c.sums == sumsUnknown {
		c.sums = state
	}
	c.mu.Unlock()
}

// ended returns why c has.
func (c *conn) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
