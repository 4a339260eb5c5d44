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

// newInUseError returns the error for a copy to a file that another copy is already writing. The address of the other
// copy's origin is from, if known.
func newInUseError(path, from string) error {
	if from != "" {
		from = " from " + from
	}
	return fmt.Errorf("%s is being written by another copy%s: %w", path, from, na.ErrAgain)
}

// probeTimeout is how long the origin of an upload may take to answer before another upload may replace it.
const probeTimeout = time.Second

// evictIdle returns an error if another origin is uploading the same file and answers a probe. It ends an upload whose
// origin has disconnected or does not answer, and an upload by the same origin, which must have abandoned it.
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

// probeOrigin reports whether a transfer's origin answers a probe, or sends a request, within probeTimeout.
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

// add assigns an ID to t and starts it. If there are too many transfers, in total or of the client, idle ones are
// ended.
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

// countTransfers returns the number of a client's transfers.
func countTransfers(all []*transfer, client string) (n int) {
	for _, t := range all {
		if t.client == client {
			n++
		}
	}
	return n
}

// find returns the transfer with the given ID. It must belong to the requesting session, because IDs can be guessed.
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

// drop closes the files of a transfer that has ended. They are closed when drop returns, even if another goroutine
// closes them.
func (fs *Server) drop(t *transfer) {
	t.closed.Do(t.close)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.transfers, t.id)
}
