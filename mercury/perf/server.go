package perf

import (
	"context"
	"errors"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

const (
	maxBuffers = 1 << 30  // bytes of a server
	overhead   = 64 << 10 // of them for each buffer: small ones are bounded too
	moving     = 8        // transfers at a time for one request
)

// A server has a buffer for each handle of each client.
type server struct {
	mu      sync.Mutex
	buffers map[bufferKey]*buffer
	size    int64
}

type bufferKey struct {
	peer   string
	handle uint32
}

type buffer struct {
	mu sync.Mutex
	initIn
	b    []byte
	stop func() bool // of what forgets it when its client is gone
	uses int         // of its memory: by the table, and by transfers
}

// Serve answers C's performance programs on n. Each time one has ended done is called, if it is not nil.
func Serve(n *mercury.Node, done func()) {
	s := &server{buffers: map[bufferKey]*buffer{}}
	empty := func(r *mercury.Request) { _ = r.Respond(nil) }
	n.HandleInline(idRateInit, empty)
	n.HandleInline(idRate, empty)
	n.HandleInline(idFirst, empty)
	initMem.Handle(n, s.init)
	bwRead.Handle(n, func(ctx context.Context, in moveIn) (struct{}, error) { return struct{}{}, s.move(ctx, in, push) })
	bwWrite.Handle(n, func(ctx context.Context, in moveIn) (struct{}, error) { return struct{}{}, s.move(ctx, in, pull) })
	n.Handle(idDone, func(r *mercury.Request) {
		s.forget(r.Peer())
		_ = r.Respond(nil)
		if done != nil {
			done()
		}
	})
}

func (s *server) init(ctx context.Context, in initIn) (out struct{}, err error) {
	size := int64(in.Count) * int64(in.Size)
	if size == 0 || in.Servers == 0 || size > maxBuffers {
		return out, mercury.ErrOverflow
	}
	r := mercury.RequestOf(ctx)
	key := bufferKey{r.Peer(), in.Handle / in.Servers}
	s.mu.Lock()
	s.drop(key)
	err = ctx.Err() // of a client that did not wait
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
		pattern(b.b, int(in.Size), in.Handle)
	}
	s.mu.Lock()
	s.drop(key)
	s.buffers[key] = b
	b.stop = context.AfterFunc(r.Context(), func() { s.forget(key.peer) })
	s.mu.Unlock()
	return out, nil
}

// drop forgets a buffer. Locked.
func (s *server) drop(key bufferKey) {
	if b := s.buffers[key]; b != nil {
		b.stop()
		delete(s.buffers, key)
		s.release(b)
	}
}

// release ends a use of b. Locked.
func (s *server) release(b *buffer) {
	if b.uses--; b.uses == 0 {
		s.size -= int64(len(b.b)) + overhead
	}
}

func (s *server) forget(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.buffers {
		if key.peer == peer {
			s.drop(key)
		}
	}
}

// move transfers the first bytes of each buffer.
func (s *server) move(ctx context.Context, in moveIn, op uint32) error {
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
		s.release(b)
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
	errs := make([]error, min(int(b.Count), moving))
	var wg sync.WaitGroup
	work := func(worker int) {
		for i := worker; i < int(b.Count) && errs[worker] == nil; i += moving {
			at := int64(i) * int64(b.Size)
			buf := b.b[at : at+int64(in.Size)]
			if op == push {
				_, errs[worker] = remote.Put(ctx, buf, at)
			} else {
				_, errs[worker] = remote.Get(ctx, buf, at)
			}
		}
	}
	for worker := 1; worker < len(errs); worker++ { // all buffers at once, as C does, and not more goroutines than help
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
