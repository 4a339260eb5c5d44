package perf

import (
	"context"
	"errors"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

const (
	maxBuffers    = 1 << 30  // maximum total size of all buffers in bytes, including overhead
	overhead      = 64 << 10 // bytes added to the size of each buffer, to limit the number of small buffers
	maxConcurrent = 8        // maximum number of concurrent transfers for one request
)

// A server holds a buffer for each handle of each client.
type server struct {
	mu      sync.Mutex // guards the fields below
	buffers map[bufferKey]*buffer
	size    int64 // total size of all buffers in bytes, including overhead
}

type bufferKey struct {
	peer   string
	handle uint32
}

// A buffer is the server's memory for one handle.
type buffer struct {
	mu sync.Mutex // held during transfers
	initIn
	b    []byte
	stop func() bool // unregisters the function that drops the buffer when the client disconnects
	uses int         // number of references held by server.buffers and transfers; guarded by server.mu
}

// Serve serves the C performance programs at n. If done is not nil, it is called each time a program has completed.
func Serve(n *mercury.Node, done func()) {
	s := &server{buffers: map[bufferKey]*buffer{}}
	empty := func(r *mercury.Request) { _ = r.Respond(nil) }
	n.HandleInline(idRateInit, empty)
	n.HandleInline(idRate, empty)
	n.HandleInline(idFirst, empty)
	initMem.Handle(n, s.handleInit)
	bwRead.Handle(n, func(ctx context.Context, in transferIn) (struct{}, error) {
		return struct{}{}, s.handleTransfer(ctx, in, push)
	})
	bwWrite.Handle(n, func(ctx context.Context, in transferIn) (struct{}, error) {
		return struct{}{}, s.handleTransfer(ctx, in, pull)
	})
	n.Handle(idDone, func(r *mercury.Request) {
		s.dropPeer(r.Peer())
		_ = r.Respond(nil)
		if done != nil {
			done()
		}
	})
}

// handleInit allocates the buffer for the handle described by in, replacing an earlier one.
func (s *server) handleInit(ctx context.Context, in initIn) (out struct{}, err error) {
	size := int64(in.Count) * int64(in.Size)
	if size <= 0 || in.Servers == 0 || size > maxBuffers { // negative: the product has overflowed
		return out, mercury.ErrOverflow
	}
	r := mercury.RequestOf(ctx)
	key := bufferKey{r.Peer(), in.Handle / in.Servers}
	s.mu.Lock()
	s.dropLocked(key)
	err = ctx.Err() // the client may have disconnected
	if err == nil && s.size+size+overhead > maxBuffers {
		err = mercury.ErrNoMemory
	}
	if err == nil {
		s.size += size + overhead
	}
	s.mu.Unlock()
	if err != nil {
		return out, err
	}
	b := &buffer{initIn: in, b: make([]byte, size), uses: 1}
	if in.Op == push {
		fillPattern(b.b, int(in.Size), in.Handle)
	}
	s.mu.Lock()
	s.dropLocked(key)
	s.buffers[key] = b
	b.stop = context.AfterFunc(r.Context(), func() { s.dropPeer(key.peer) })
	s.mu.Unlock()
	return out, nil
}

// dropLocked removes the buffer with the given key, if there is one. s.mu must be held.
func (s *server) dropLocked(key bufferKey) {
	if b := s.buffers[key]; b != nil {
		b.stop()
		delete(s.buffers, key)
		s.releaseLocked(b)
	}
}

// releaseLocked releases a reference to b. s.mu must be held.
func (s *server) releaseLocked(b *buffer) {
	b.uses--
	if b.uses == 0 {
		s.size -= int64(len(b.b)) + overhead
	}
}

// dropPeer removes all buffers of a client.
func (s *server) dropPeer(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.buffers {
		if key.peer == peer {
			s.dropLocked(key)
		}
	}
}

// handleTransfer transfers the first in.Size bytes of each buffer in the direction op.
func (s *server) handleTransfer(ctx context.Context, in transferIn, op uint32) error {
	r := mercury.RequestOf(ctx)
	s.mu.Lock()
	b := s.buffers[bufferKey{r.Peer(), in.Handle}]
	if b != nil {
		b.uses++
	}
	s.mu.Unlock()
	if b == nil {
		return mercury.ErrNoMemory
	}
	defer func() {
		s.mu.Lock()
		s.releaseLocked(b)
		s.mu.Unlock()
	}()
	if in.Size > b.Size {
		return mercury.ErrNoMemory
	}
	mem := b.Mem
	if !in.Mem.IsNull() {
		mem = in.Mem
	}
	remote := r.Remote(mem)
	b.mu.Lock()
	defer b.mu.Unlock()
	errs := make([]error, min(int(b.Count), maxConcurrent))
	var wg sync.WaitGroup
	work := func(worker int) {
		for i := worker; i < int(b.Count) && errs[worker] == nil; i += maxConcurrent {
			at := int64(i) * int64(b.Size)
			buf := b.b[at : at+int64(in.Size)]
			if op == push {
				_, errs[worker] = remote.Put(ctx, buf, at)
			} else {
				_, errs[worker] = remote.Get(ctx, buf, at)
			}
		}
	}
	// C transfers all buffers at once. More goroutines would not be faster.
	for worker := 1; worker < len(errs); worker++ {
		wg.Go(func() { work(worker) })
	}
	work(0)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if op == pull && b.Verifying {
		return verify(b.b, int(b.Size), int(in.Size), b.Handle)
	}
	return nil
}
