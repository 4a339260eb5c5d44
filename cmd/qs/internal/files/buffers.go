package files

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A buffer is registered memory for pieces. It is reused for one piece after another.
type buffer struct {
	mem []byte
	h   *bulk.Handle
}

func newBuffer(hctx *hg.Context, access bulk.Access, size int64) (*buffer, error) {
	b := &buffer{mem: make([]byte, size)}
	var err error
	b.h, err = bulk.Create(hctx, bulk.Options{Access: access, Eager: -1}, b.mem)
	return b, err
}

func (b *buffer) close() { _ = b.h.Close() }

const (
	// maxBuffered is the maximum size of a target's buffers in bytes. maxBufferedOfClient is the maximum size of those
	// in use by one client.
	maxBuffered         = 1 << 30
	maxBufferedOfClient = 512 << 20
	// maxSpare is the maximum size in bytes of unused buffers that are kept for reuse.
	maxSpare = 128 << 20
)

// buffers manages a target's buffers.
type buffers struct {
	hctx *hg.Context

	mu    sync.Mutex // guards the fields below
	spare []*buffer
	bytes int64            // total size of all buffers, in bytes
	kept  int64            // total size of the spare buffers, in bytes
	lent  map[string]int64 // total size of the buffers in use by each client, in bytes
}

func newBuffers(hctx *hg.Context) *buffers { return &buffers{hctx: hctx, lent: map[string]int64{}} }

// get returns a buffer of at least size bytes, which counts toward the client's limit until put is called. It returns
// an error that wraps na.ErrAgain if a limit is reached.
func (p *buffers) get(client string, size int64) (*buffer, error) {
	size = max(64<<10, int64(1)<<bits.Len64(uint64(size-1)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent[client]+size > maxBufferedOfClient {
		return nil, fmt.Errorf("the target's %d MiB of buffers for this client are in use; try again later: %w",
			maxBufferedOfClient>>20, na.ErrAgain)
	}
	b, err := p.takeLocked(size)
	if err == nil {
		p.lent[client] += size
	}
	return b, err
}

// takeLocked returns a spare buffer of size bytes or, if there is none, a new one. p.mu must be held.
func (p *buffers) takeLocked(size int64) (*buffer, error) {
	for i, b := range slices.Backward(p.spare) { // start with the most recently used buffer, which may still be in the processor's cache
		if int64(len(b.mem)) == size {
			p.spare = append(p.spare[:i], p.spare[i+1:]...)
			p.kept -= size
			return b, nil
		}
	}
	for p.bytes+size > maxBuffered && len(p.spare) > 0 {
		p.freeBufferLocked(p.spare[0])
		p.kept -= int64(len(p.spare[0].mem))
		p.spare = p.spare[1:]
	}
	if p.bytes+size > maxBuffered {
		return nil, fmt.Errorf("the target's %d MiB of buffers are in use; try again later: %w",
			maxBuffered>>20, na.ErrAgain)
	}
	b, err := newBuffer(p.hctx, bulk.LocalOnly, size)
	if err == nil {
		p.bytes += size
	}
	return b, err
}

// put releases a buffer that get returned for client.
func (p *buffers) put(client string, b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent[client] -= int64(len(b.mem)); p.lent[client] == 0 {
		delete(p.lent, client)
	}
	if size := int64(len(b.mem)); p.kept+size <= maxSpare {
		p.kept += size
		p.spare = append(p.spare, b)
		return
	}
	p.freeBufferLocked(b)
}

// freeBufferLocked frees the memory of b. The caller must hold p.mu.
func (p *buffers) freeBufferLocked(b *buffer) {
	b.close()
	p.bytes -= int64(len(b.mem))
}
