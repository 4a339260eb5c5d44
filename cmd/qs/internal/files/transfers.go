package files

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// evict ends an upload of the same file: of an origin that is gone, or of one that is too slow. The last one counts.
func (fs *Server) evict(path string) {
	for _, t := range fs.all() {
		if t.part != nil && t.path == path {
			t.cancel(fmt.Errorf("another transfer of %s has begun: %w", path, na.ErrCanceled))
			<-t.ended
			fs.drop(t)
		}
	}
}

// add gives t its number, and begins to run it. When there are too many, of all clients or of its own, those that rest have to go.
func (fs *Server) add(t *transfer) error {
	if all := fs.all(); len(all) >= maxTransfers || countOf(all, t.client) >= maxTransfersOfClient {
		for _, old := range all {
			old.mu.Lock()
			idle := time.Since(old.used)
			old.mu.Unlock()
			if idle > maxIdle {
				old.cancel(fmt.Errorf("the transfer of %s has rested for %v: %w", old.path, idle.Round(time.Second), na.ErrTimeout))
				<-old.ended
				fs.drop(old)
			}
		}
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	switch {
	case fs.closed:
		return fmt.Errorf("the target is ending: %w", na.ErrClosed)
	case len(fs.transfers) >= maxTransfers:
		return fmt.Errorf("the target has %d transfers; try again when some have ended: %w", maxTransfers, na.ErrAgain)
	case countOf(slices.Collect(maps.Values(fs.transfers)), t.client) >= maxTransfersOfClient:
		return fmt.Errorf("the target has %d transfers of this client; try again when some have ended: %w", maxTransfersOfClient, na.ErrAgain)
	}
	fs.lastID++
	t.id = fs.lastID
	fs.transfers[t.id] = t
	fs.running.Go(t.run)
	return nil
}

// countOf returns how many transfers are of a client.
func countOf(all []*transfer, client string) (n int) {
	for _, t := range all {
		if t.client == client {
			n++
		}
	}
	return n
}

// find returns a transfer of the session that asks: numbers can be guessed.
func (fs *Server) find(peer na.Addr, id uint64) (*transfer, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if t := fs.transfers[id]; t != nil && t.peer == peer {
		return t, nil
	}
	return nil, fmt.Errorf("there is no transfer %d; it was broken off: %w", id, na.ErrCanceled)
}

func (fs *Server) all() []*transfer {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Collect(maps.Values(fs.transfers))
}

// drop closes the files of a transfer that has ended. They are closed when it returns, also when somebody else closes them.
func (fs *Server) drop(t *transfer) {
	t.closed.Do(t.close)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.transfers, t.id)
}
