package files

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// newInUseError returns the error for a copy to path, to which another copy is being written. If from is not empty, it
// is the network address of the other copy's origin.
func newInUseError(path, from string) error {
	if from != "" {
		from = " from " + from
	}
	return fmt.Errorf("%s is being written by another copy%s: %w", path, from, na.ErrAgain)
}

// probeTimeout is the time within which an upload's origin must answer a probe. If it does not, another upload to the
// same path replaces its upload.
const probeTimeout = time.Second

// evictIdle ends an upload to path that is no longer active, because its origin does not answer a probe or is itself
// the caller by, which must have abandoned the upload. If another origin is uploading to path and answers a probe,
// evictIdle returns an error.
func (fs *Server) evictIdle(by qs.Caller, path string) error {
	for _, t := range fs.all() {
		if t.part == nil || t.path != path {
			continue
		}
		if t.peer != by.Addr && context.Cause(t.ctx) == nil && fs.probeOrigin(t) {
			return newInUseError(path, t.from)
		}
		t.cancel(fmt.Errorf("the origin did not respond, and another copy of %s replaced it: %w", path, na.ErrCanceled))
		<-t.ended
		fs.drop(t)
	}
	return nil
}

// probeOrigin reports whether the origin of t is reachable. It is if it answers a probe, or sends a request for t,
// within probeTimeout.
func (fs *Server) probeOrigin(t *transfer) bool {
	before := t.lastUse()
	hctx := fs.node.HG().NA()
	result := make(chan error, 1)
	op := hctx.NewOp(func(_ *na.Op, r na.Result) { result <- r.Err })
	if err := hctx.Probe(op, t.peer, probeTimeout); err != nil {
		return false
	}
	return <-result == nil || t.lastUse().After(before)
}

// add assigns an ID to t and starts it. If the limit on transfers of the target or of t's client is reached, add first
// ends transfers that have been idle for longer than maxIdle.
func (fs *Server) add(t *transfer) error {
	if all := fs.all(); len(all) >= maxTransfers || countTransfers(all, t.client) >= maxTransfersOfClient {
		for _, old := range all {
			if idle := time.Since(old.lastUse()); idle > maxIdle {
				old.cancel(fmt.Errorf("the transfer of %s was idle for %v: %w", old.path, idle.Round(time.Second), na.ErrTimeout))
				<-old.ended
				fs.drop(old)
			}
		}
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	switch {
	case fs.closed:
		return fmt.Errorf("the target is shutting down: %w", na.ErrClosed)
	case len(fs.transfers) >= maxTransfers:
		return fmt.Errorf("too many transfers at the target: %d; try again later: %w", maxTransfers, na.ErrAgain)
	case countTransfers(slices.Collect(maps.Values(fs.transfers)), t.client) >= maxTransfersOfClient:
		return fmt.Errorf("too many transfers of this client: %d; try again later: %w", maxTransfersOfClient, na.ErrAgain)
	}
	fs.lastID++
	t.id = fs.lastID
	fs.transfers[t.id] = t
	fs.running.Go(t.runStages)
	return nil
}

// countTransfers returns the number of transfers in all that belong to client.
func countTransfers(all []*transfer, client string) (n int) {
	for _, t := range all {
		if t.client == client {
			n++
		}
	}
	return n
}

// find returns the transfer with the given ID. The transfer must belong to peer, because a peer can guess the IDs of
// other transfers.
func (fs *Server) find(peer na.Addr, id uint64) (*transfer, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if t := fs.transfers[id]; t != nil && t.peer == peer {
		return t, nil
	}
	return nil, fmt.Errorf("transfer %d does not exist or was canceled: %w", id, na.ErrCanceled)
}

func (fs *Server) all() []*transfer {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Collect(maps.Values(fs.transfers))
}

// drop closes the files of t, which has ended, and removes t from the server. It may be called concurrently. The files
// are closed when any of the calls returns.
func (fs *Server) drop(t *transfer) {
	t.closed.Do(t.close)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.transfers, t.id)
}
