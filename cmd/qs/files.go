package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const (
	// maxTransfers bounds the transfers of a target, maxWorkers the requests about files that it deals with at a time.
	maxTransfers = 256
	maxWorkers   = 64
	// maxIdle is how long a transfer may rest before others may have its place.
	maxIdle = time.Minute
)

// files serves the files below a folder.
//
//	handler (in Trigger, never waits) ─► a worker: stat, list, open, seek, close ─► respond
//	                                └──► a transfer's queue: pieces
type files struct {
	disk    *disk // nil: none are served
	write   bool
	buffers *buffers
	workers chan struct{}
	running sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	transfers map[uint64]*transfer
	lastID    uint64
	closed    bool
}

// register makes the RPCs known; open makes them work.
func (fs *files) register(class *hg.Class) error {
	fs.workers = make(chan struct{}, maxWorkers)
	fs.transfers = map[uint64]*transfer{}
	var errs []error
	for name, handler := range map[string]hg.Handler{
		rpcStat:  work(fs, fs.stat),
		rpcList:  work(fs, fs.list),
		rpcMkdir: work(fs, fs.mkdir),
		rpcOpen:  work(fs, fs.open),
		rpcSeek:  work(fs, fs.seek),
		rpcPiece: fs.piece,
		rpcClose: work(fs, fs.finish),
	} {
		_, err := class.Register(name, coded(handler))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// coded gives a handler's error the code by which the client knows it.
func coded(handler hg.Handler) hg.Handler {
	return func(h hg.Incoming) error {
		if err := handler(h); err != nil {
			return hg.Errorf(codeOf(err), "%w", err)
		}
		return nil
	}
}

// attach makes fs ready for requests of hctx.
func (fs *files) attach(hctx *hg.Context) {
	fs.buffers = &buffers{hctx: hctx}
	hctx.OnFault(func(peer na.Addr, err error) {
		for _, t := range fs.all() {
			if t.peer == peer || peer.IsZero() && !hctx.NA().Connected(t.peer) { // without a name: more than can be told
				t.cancel(fmt.Errorf("the origin was lost: %w", err))
			}
		}
	})
}

var (
	errNoFiles  = fmt.Errorf("this target serves no files; start it with qs serve -root DIR: %w", na.ErrPermission)
	errReadOnly = fmt.Errorf("this target takes no files; start it with qs serve -root DIR -write: %w", na.ErrPermission)
)

// work is the handler of requests that read or write the disk: they run on goroutines of their own.
func work[In, Out any](fs *files, serve func(r hg.Incoming, in *In) (Out, error)) hg.Handler {
	return func(h hg.Incoming) error {
		if fs.disk == nil {
			return errNoFiles
		}
		b, err := h.InputRaw()
		if err != nil {
			return err
		}
		in := new(In)
		if err := decode(b, in); err != nil {
			return err
		}
		select {
		case fs.workers <- struct{}{}:
		default:
			return fmt.Errorf("the target works on %d requests already: %w", maxWorkers, na.ErrAgain)
		}
		if err := h.Detach(); err != nil {
			<-fs.workers
			return err
		}
		fs.running.Go(func() {
			defer func() { <-fs.workers }()
			out, err := recovered(serve, h, in)
			respond(h, out, err)
		})
		return nil
	}
}

// recovered answers a request that panics as hg does when a handler panics.
func recovered[In, Out any](serve func(r hg.Incoming, in *In) (Out, error), h hg.Incoming, in *In) (out Out, err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("request panicked", "rpc", h.Name(), "peer", h.Peer().String(), "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("the request panicked: %v: %w", p, hg.ErrPanic)
		}
	}()
	return serve(h, in)
}

func (fs *files) stat(_ hg.Incoming, in *pathRequest) (entry, error) {
	return fs.disk.stat(context.Background(), in.Path)
}

func (fs *files) list(_ hg.Incoming, in *listRequest) (r listReply, err error) {
	r.Entries, err = fs.disk.list(context.Background(), in.Path, in.After)
	return r, err
}

func (fs *files) mkdir(_ hg.Incoming, in *mkdirRequest) (r struct{}, err error) {
	if !fs.write {
		return r, errReadOnly
	}
	return r, fs.disk.mkdir(context.Background(), in.Path, in.Mode)
}

func (fs *files) open(h hg.Incoming, in *openRequest) (r openReply, err error) {
	path, err := inside(in.Path)
	if err != nil {
		return r, err
	}
	t := fs.newTransfer(h.Peer(), path)
	if in.Write {
		if !fs.write {
			return r, errReadOnly
		}
		fs.evict(path)
		t.part, err = fs.disk.openPart(path, in.Stamp, in.SHA256, in.Anew)
		if errors.Is(err, errSame) {
			return openReply{Same: true}, nil
		}
	} else {
		if t.source, err = fs.disk.openSource(path, in.SHA256); err == nil {
			t.source.share(fs.buffers.hctx, bulk.LocalOnly)
		}
	}
	if err != nil {
		return r, err
	}
	if err := fs.add(t); err != nil {
		t.close()
		return r, err
	}
	r.ID = t.id
	if t.source != nil {
		r.Stamp = t.source.stamp
	} else {
		r.At, r.Note = t.part.claimed, t.part.note
	}
	fs.running.Go(t.run)
	return r, nil
}

func (fs *files) seek(h hg.Incoming, in *seekRequest) (r seekReply, err error) {
	t, err := fs.find(h, in.ID)
	if err != nil {
		return r, err
	}
	return t.seek(in)
}

func (fs *files) finish(h hg.Incoming, in *closeRequest) (r closeReply, err error) {
	t, err := fs.find(h, in.ID)
	if err != nil {
		return r, err
	}
	defer fs.drop(t)
	return t.finish(in)
}

func (fs *files) piece(h hg.Incoming) error {
	b, err := h.InputRaw()
	if err != nil {
		return err
	}
	var req pieceRequest
	if err := decode(b, &req); err != nil {
		return err
	}
	t, err := fs.find(h, req.ID)
	if err != nil {
		return err
	}
	return t.enqueue(h, req)
}

// close breaks off what is under way and waits for it. The class has been closed, so no request comes any more.
func (fs *files) close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock()
	for _, t := range fs.all() {
		t.cancel(fmt.Errorf("the target is ending: %w", na.ErrClosed))
	}
	fs.running.Wait()
	if fs.disk != nil {
		fs.disk.close()
	}
}
