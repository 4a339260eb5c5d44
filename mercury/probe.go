package mercury

import (
	"context"
	"crypto/rand"
	"encoding/binary"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A checksumState records whether a peer's library uses the longer headers with checksums.
type checksumState uint8

const (
	sumsUnknown checksumState = iota
	sumsOff
	sumsOn
)

// checksums reports whether requests to the peer must have the longer header. If no message received from the peer has
// shown this yet, the first call starts a probe, and all calls wait for its result.
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
			return false, contextError(ctx, "no response to checksum detection, set Config.Checksums")
		case <-c.done:
			return false, c.endError()
		}
	}
}

// probe sends a request for an RPC that does not exist at any peer. C responds to it whether it uses checksums or not,
// and the flags of the response indicate whether it does. probe returns when the response has arrived, the connection
// is closed, or Config.SetupTimeout has expired. If there was no response, the next call starts another probe.
func (c *conn) probe(probing chan struct{}) {
	ctx, cancel := context.WithTimeout(c.ctx, c.node.cfg.SetupTimeout)
	defer cancel()
	var b [8]byte
	_, _ = rand.Read(b[:])
	_, _, _ = c.call(ctx, hgwire.Nameless(binary.LittleEndian.Uint64(b[:])|1<<63), nil, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probing = nil
	close(probing)
}

// recordChecksums records whether a message of the peer has the longer header, if that is not yet known.
func (c *conn) recordChecksums(checksums bool) {
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

// endError returns the error with which c was closed.
func (c *conn) endError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
