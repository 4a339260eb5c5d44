package mercury

import (
	"context"
	"crypto/rand"
	"encoding/binary"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// A checksumState is whether the library of a peer uses the longer headers with checksums.
type checksumState uint8

const (
	sumsUnknown checksumState = iota
	sumsOff
	sumsOn
)

// checksums reports whether requests to the peer have the longer header. If the peer has not sent a message that
// shows it, the first call starts a probe and waits for it.
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

// probe sends a request of an RPC that no peer has. C responds to it with and without checksums, and the flags of the
// response show which one it is. probe ends when the response has arrived, the connection has ended, or
// Config.SetupTimeout has passed; the next call then starts another one.
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

// recordChecksums records whether a message of the peer has the longer header, if that is unknown.
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

// endError returns the error with which c has ended.
func (c *conn) endError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
