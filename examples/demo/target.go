package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
)

// maxPull limits the memory that the target allocates at an origin's request.
const maxPull = 8 << 30

// A target is the state of the child process.
type target struct {
	hctx    *hg.Context
	moved   hg.ID
	holding hg.ID

	mu   sync.Mutex // guards kept
	kept []hg.Request
}

// runTarget listens on a free loopback port, prints its address, and serves until stdin is closed.
func runTarget(transport string) error {
	at := transport + "://127.0.0.1:0"
	switch transport {
	case "sm":
		at = "sm://*" // unique name
	case "auto":
		at = "tcp://127.0.0.1:0,sm://"
	}
	class, err := hg.Open(at, hg.Config{})
	if err != nil {
		return err
	}
	t := &target{}
	if err := t.register(class); err != nil {
		return err
	}
	if t.hctx, err = class.NewContext(); err != nil {
		return err
	}
	fmt.Println(ready + t.hctx.Self().String())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = class.Close()
		time.AfterFunc(5*time.Second, func() { os.Exit(1) }) // exit even if the shutdown hangs, because no other process is left to stop this one
	}()
	var serving sync.WaitGroup
	for range 2 { // a slow handler delays only one of the two goroutines
		serving.Go(t.serve)
	}
	serving.Wait()
	return nil
}

func (t *target) register(class *hg.Class) error {
	var errs [5]error
	_, errs[0] = class.Register(rpcSquare, square)
	_, errs[1] = class.Register(rpcPull, t.pull)
	_, errs[2] = class.Register(rpcHold, t.hold)
	t.moved, errs[3] = class.RegisterRPC(hg.RPC{Name: rpcMoved, OneWay: true})
	t.holding, errs[4] = class.RegisterRPC(hg.RPC{Name: rpcHolding, OneWay: true})
	return errors.Join(errs[:]...)
}

// serve moves bytes and runs handlers until the class is closed and all its callbacks have run.
func (t *target) serve() {
	for t.hctx.Progress(-1) == nil {
		t.hctx.Trigger(0)
	}
}

func square(h hg.Request) error {
	var n int64
	if err := h.Input(&n); err != nil {
		return err
	}
	return h.Respond(n*n, nil)
}

// hold keeps a request until one arrives that requires an answer, and then answers all of them,
// oldest first.
func (t *target) hold(h hg.Request) error {
	var answer bool
	if err := h.Input(&answer); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !answer {
		if err := h.Detach(); err != nil { // otherwise returning from this handler would answer the request
			return err
		}
		t.kept = append(t.kept, h)
		return t.tellHolding(h.Peer())
	}
	for _, old := range t.kept {
		_ = old.Respond("too late", nil) // its origin has given up; this is not an error here
	}
	t.kept = nil
	return h.Respond("here I am", nil)
}

// tellHolding calls back the origin, over the session on which its request arrived.
func (t *target) tellHolding(origin hg.Addr) error {
	h, err := t.hctx.Create(origin, t.holding)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Forward(nil, nil)
}

// A pulling is one pull for an origin. It is driven by callbacks; no goroutine waits for it.
type pulling struct {
	h      hg.Request // request to answer
	in     pullInput
	buf    []byte
	local  *bulk.Handle
	report *hg.Handle // reports the progress of the pull to the origin
}

// pull begins to pull the origin's memory and returns. The callbacks below answer the request.
func (t *target) pull(h hg.Request) error {
	p := &pulling{h: h}
	if err := h.Input(&p.in); err != nil {
		return err
	}
	if p.in.Data == nil || p.in.Data.Len() > maxPull {
		return fmt.Errorf("no data to pull, or more than %d bytes", int64(maxPull))
	}
	p.buf = make([]byte, p.in.Data.Len())
	var err error
	if p.local, err = bulk.Create(t.hctx, bulk.Options{Access: bulk.LocalOnly}, p.buf); err != nil {
		return err
	}
	if p.report, err = t.hctx.Create(h.Peer(), t.moved); err != nil {
		_ = p.local.Close()
		return err
	}
	spec := bulk.Spec{
		Dir: bulk.Pull, Peer: h.Peer(), Remote: p.in.Data, Local: p.local, Size: p.in.Data.Len(), OnProgress: p.progress,
	}
	if p.in.StopAt > 0 {
		spec.Chunk, spec.Window = stopChunk, 1
	}
	if err := h.Detach(); err != nil {
		p.close()
		return err
	}
	if _, err := bulk.Transfer(t.hctx, spec, p.done); err != nil {
		p.close()
		return err
	}
	return nil
}

func (p *pulling) progress(op *bulk.Op, moved int64) {
	if p.in.StopAt > 0 && moved >= p.in.StopAt {
		op.Cancel()
		return
	}
	// This fails if the previous report has not been sent yet. The next report will include its
	// count.
	_ = p.report.Forward(moved, nil)
}

func (p *pulling) done(op *bulk.Op, err error) {
	defer p.close()
	out := pullOutput{Moved: op.Moved()}
	switch {
	case errors.Is(err, context.Canceled) && p.in.StopAt > 0:
		out.Canceled = true
	case err != nil:
		_ = p.h.RespondError(err, nil)
		return
	default:
		sum := sha256.Sum256(p.buf)
		out.Sum = sum[:]
	}
	_ = p.h.Respond(out, nil) // fails only if the origin is lost
}

func (p *pulling) close() {
	p.report.Close()
	_ = p.local.Close()
}
