package files

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	// maxTransfers is the maximum number of transfers at a target. maxTransfersOfClient is the maximum for one client;
	// see clientOf.
	maxTransfers         = 256
	maxTransfersOfClient = 128
	// maxIdle is how long a transfer must be idle before it may be ended to make room for another.
	maxIdle = time.Minute
)

// A Server serves the files in a folder. Its methods run on the node's goroutines. The handler of rpcPiece only appends
// requests to the queue of their transfer and never blocks, so that the requests remain in order.
type Server struct {
	node    *qs.Node
	disk    *disk
	write   bool
	buffers *buffers
	running sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	transfers map[uint64]*transfer
	lastID    uint64
	closed    bool
}

// Serve makes n serve the files in the folder root. If write is true, clients may also upload files.
func Serve(n *qs.Node, root string, write bool) (*Server, error) {
	d, err := openDisk(root)
	if err != nil {
		return nil, fmt.Errorf("cannot open the directory of --root: %w", err)
	}
	fs := &Server{node: n, disk: d, write: write, buffers: newBuffers(n.HG()), transfers: map[uint64]*transfer{}}
	handle(fs, methodStat, fs.stat)
	handle(fs, methodList, fs.list)
	handle(fs, methodMkdir, fs.mkdir)
	handle(fs, methodOpen, fs.open)
	handle(fs, methodSeek, fs.seek)
	handle(fs, methodClose, fs.finish)
	piece := func(h hg.Request) error { return withCode(fs.piece(h)) }
	if _, err := n.HG().Class().RegisterRPC(hg.RPC{Name: rpcPiece, Handler: piece, Inline: true, Codec: codec.Msgpack}); err != nil {
		return nil, err
	}
	n.HG().OnFault(func(peer na.Addr, err error) {
		for _, t := range fs.all() {
			if t.peer == peer || peer.IsZero() && !n.HG().NA().Connected(t.peer) { // an unknown peer was lost: cancel the transfers of all peers that are not connected
				t.cancel(fmt.Errorf("the origin was lost: %w", err))
			}
		}
	})
	return fs, nil
}

var errReadOnly = fmt.Errorf("the target is read-only; start it with qs serve --root DIR --write: %w", na.ErrPermission)

// handle registers serve as the handler of m.
func handle[In, Out any](fs *Server, m *qs.Method[In, Out], serve func(by qs.Caller, in In) (Out, error)) {
	m.Handle(fs.node, func(ctx context.Context, in In) (out Out, err error) {
		out, err = serve(qs.CallerFrom(ctx), in)
		return out, withCode(err)
	})
}

func (fs *Server) stat(_ qs.Caller, in pathRequest) (entry, error) {
	return fs.disk.stat(context.Background(), in.Path)
}

func (fs *Server) list(_ qs.Caller, in listRequest) (r listReply, err error) {
	r.Entries, err = fs.disk.list(context.Background(), in.Path, in.After)
	return r, err
}

func (fs *Server) mkdir(_ qs.Caller, in mkdirRequest) (r struct{}, err error) {
	if !fs.write {
		return r, errReadOnly
	}
	return r, fs.disk.mkdir(context.Background(), in.Path, in.Mode)
}

func (fs *Server) open(by qs.Caller, in openRequest) (r openReply, err error) {
	path, err := cleanPath(in.Path)
	if err != nil {
		return r, err
	}
	t := fs.newTransfer(by.Addr, clientOf(by), by.Remote, path)
	if in.Write {
		if !fs.write {
			return r, errReadOnly
		}
		if err := fs.evictIdle(by, path); err != nil {
			return r, err
		}
		t.part, err = fs.disk.openPart(path, in.Stamp, in.How)
		if errors.Is(err, errSame) {
			return openReply{Same: true}, nil
		}
	} else {
		if t.source, err = fs.disk.openSource(path, in.How.SHA256); err == nil {
			t.source.shareFile(fs.buffers.hctx, bulk.LocalOnly)
		}
	}
	if err != nil {
		return r, err
	}
	if t.source != nil {
		r.Stamp = t.source.stamp
	} else {
		r.At, r.Note = t.part.journaled, t.part.note
	}
	if err := fs.add(t); err != nil {
		t.close()
		return r, err
	}
	r.ID = t.id
	return r, nil
}

func (fs *Server) seek(by qs.Caller, in seekRequest) (r seekReply, err error) {
	t, err := fs.find(by.Addr, in.ID)
	if err != nil {
		return r, err
	}
	return t.verifyPrefix(in)
}

func (fs *Server) finish(by qs.Caller, in closeRequest) (r closeReply, err error) {
	t, err := fs.find(by.Addr, in.ID)
	if err != nil {
		return r, err
	}
	defer fs.drop(t)
	return t.finish(in)
}

func (fs *Server) piece(h hg.Request) error {
	var req pieceRequest
	if err := h.Input(&req); err != nil {
		return err
	}
	t, err := fs.find(h.Peer(), req.ID)
	if err != nil {
		return err
	}
	return t.enqueue(h, req)
}

// Close cancels all transfers and waits for them to end. The caller must close the node first, so that no further
// requests arrive.
func (fs *Server) Close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock()
	for _, t := range fs.all() {
		t.cancel(fmt.Errorf("the target is shutting down: %w", na.ErrClosed))
	}
	fs.running.Wait()
	fs.disk.close()
}
