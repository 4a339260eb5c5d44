// Package tour is a program with two sides that makes calls, pulls memory, cancels calls and kills the target over any
// plugin. It performs the same steps as examples/demo does over tcp, as a test of your own plugin. One side calls Serve
// and the other Run; they may be in the same process or in different ones.
package tour

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/request"
)

const (
	calls = 1000
	// pulled is the number of bytes that the target pulls. It takes many pieces and exceeds any window.
	pulled = 8<<20 + 3
)

// open opens a class that uses the plugin, and returns its context.
func open(p carrier.Plugin, addr string, register func(c *hg.Class) error) (*hg.Context, error) {
	class, err := hg.Open(addr, hg.Config{NA: na.Config{Plugins: []na.Plugin{p}}})
	if err != nil {
		return nil, err
	}
	if err := register(class); err != nil {
		return nil, err
	}
	return class.NewContext()
}

// A Target serves the tour.
type Target struct {
	hctx   *hg.Context
	driver chan struct{} // closed when the context is no longer driven
}

// Serve listens at addr and serves until Close is called.
func Serve(p carrier.Plugin, addr string) (*Target, error) {
	hctx, err := open(p, addr, register)
	if err != nil {
		return nil, err
	}
	t := &Target{hctx: hctx, driver: make(chan struct{})}
	go func() {
		defer close(t.driver)
		for hctx.Progress(-1) == nil {
			hctx.Trigger(0)
		}
	}()
	return t, nil
}

// Addr returns the target's address for peers.
func (t *Target) Addr() string { return t.hctx.Self().String() }

// Close closes the target at once, abandoning unanswered requests.
func (t *Target) Close() error {
	err := t.hctx.Class().Close()
	<-t.driver
	return err
}

// register registers the target's RPCs.
func register(c *hg.Class) error {
	for name, handler := range map[string]hg.Handler{"square": square, "pull": pull, "hold": hold()} {
		if _, err := c.Register(name, handler); err != nil {
			return err
		}
	}
	return nil
}

func square(r hg.Request) error {
	var n int64
	if err := r.Input(&n); err != nil {
		return err
	}
	return r.Respond(n*n, nil)
}

// hold returns a handler that keeps a request whose input is false, and answers it when the next request with input
// true arrives.
func hold() hg.Handler {
	var kept hg.Request
	return func(r hg.Request) error {
		var answers bool
		if err := r.Input(&answers); err != nil {
			return err
		}
		if !answers {
			kept = r
			return r.Detach()
		}
		_ = kept.Respond("too late", nil) // the origin has canceled it and drops the answer
		return r.Respond("here I am", nil)
	}
}

// pull pulls the origin's memory. It answers with the checksum from the callback of the transfer.
func pull(r hg.Request) error {
	var remote *bulk.Handle
	if err := r.Input(&remote); err != nil {
		return err
	}
	if remote == nil || remote.Len() != pulled {
		return errors.New("not the memory that was asked for")
	}
	buf := make([]byte, pulled)
	local, err := bulk.Create(r.HG(), bulk.Options{Access: bulk.LocalOnly}, buf)
	if err != nil {
		return err
	}
	if err := r.Detach(); err != nil {
		return err
	}
	answer := func(_ *bulk.Op, err error) {
		if err != nil {
			_ = r.RespondError(err, nil)
		} else {
			sum := sha256.Sum256(buf)
			_ = r.Respond(sum[:], nil)
		}
		_ = local.Close()
	}
	if _, err := bulk.Transfer(r.HG(), bulk.Spec{Dir: bulk.Pull, Peer: r.Peer(), Remote: remote, Local: local, Size: pulled}, answer); err != nil {
		answer(nil, err)
	}
	return nil
}

// Run runs the tour against the target at addr. The kill function must terminate the target without notice. Run returns
// the first error. Its duration is limited by ctx.
func Run(ctx context.Context, p carrier.Plugin, addr string, kill func()) (err error) {
	hctx, err := open(p, p.Scheme()+"://", register) // an origin registers the names that it calls
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hctx.Class().Shutdown(ctx)) }()
	target, err := hctx.LookupWait(ctx, addr)
	if err != nil {
		return err
	}
	v := &visit{hctx: hctx, target: target, waits: request.NewClass(hctx)}
	for _, step := range []struct {
		name string
		run  func(ctx context.Context) error
	}{
		{"calls", v.calls}, {"pull", v.pull}, {"cancel", v.cancel},
		{"kill", func(ctx context.Context) error { return v.kill(ctx, kill) }},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// A visit is the origin's side of the tour.
type visit struct {
	hctx   *hg.Context
	target hg.Addr
	waits  *request.Class
}

// call makes one call and waits for it to complete.
func (v *visit) call(ctx context.Context, name string, in, out any) error {
	h, err := v.hctx.Create(v.target, hg.HashName(name))
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Call(ctx, in, out)
}

func (v *visit) calls(ctx context.Context) error {
	for n := range int64(calls) {
		var sq int64
		if err := v.call(ctx, "square", n, &sq); err != nil || sq != n*n {
			return fmt.Errorf("the square of %d is %d (%w)", n, sq, err)
		}
	}
	return nil
}

// pull makes the target pull memory of this process.
func (v *visit) pull(ctx context.Context) error {
	data := bytes.Repeat([]byte("quicksilver "), pulled/12+1)[:pulled]
	memory, err := bulk.Create(v.hctx, bulk.Options{Access: bulk.ReadOnly}, data)
	if err != nil {
		return err
	}
	var got []byte
	err = v.call(ctx, "pull", memory, &got)
	if want := sha256.Sum256(data); err == nil && !bytes.Equal(got, want[:]) {
		err = errors.New("the target has pulled other bytes")
	}
	return errors.Join(err, memory.CloseWait(ctx))
}

// cancel cancels an unanswered call, which completes at once, and then reuses its handle.
func (v *visit) cancel(ctx context.Context) error {
	h, err := v.hctx.Create(v.target, hg.HashName("hold"))
	if err != nil {
		return err
	}
	defer h.Close()
	done := v.waits.Create(nil)
	callback := func(_ *hg.Handle, err error) { done.Complete(err) }
	if err := h.Forward(false, callback); err != nil {
		return err
	}
	if done.Wait(50 * time.Millisecond) {
		return fmt.Errorf("the call has ended: %v", done.Err())
	}
	h.Cancel()
	v.hctx.Trigger(0) // no call to Progress, because nothing has to arrive
	if !done.Completed() || !errors.Is(done.Err(), context.Canceled) {
		return fmt.Errorf("the canceled call ended: %t, with %v", done.Completed(), done.Err())
	}
	done.Reset(h.Cancel)
	if err := h.Forward(true, callback); err != nil {
		return err
	}
	var answer string
	if err := done.WaitContext(ctx); err != nil {
		return err
	}
	if err := h.Output(&answer); err != nil || answer != "here I am" {
		return fmt.Errorf("the answer is %q (%w)", answer, err)
	}
	return nil
}

// kill kills the target while it holds a request.
func (v *visit) kill(ctx context.Context, kill func()) error {
	h, err := v.hctx.Create(v.target, hg.HashName("hold"))
	if err != nil {
		return err
	}
	defer h.Close()
	done := v.waits.Create(h.Cancel)
	if err := h.Forward(false, func(_ *hg.Handle, err error) { done.Complete(err) }); err != nil {
		return err
	}
	var sq int64
	if err := v.call(ctx, "square", int64(2), &sq); err != nil { // sent after the request, so the request has arrived
		return err
	}
	kill()
	err = done.WaitContext(ctx)
	if !errors.Is(err, hg.ErrPeerLost) || hg.FateOf(err) != hg.MaybeRan {
		return fmt.Errorf("the call ended with %v, the request %v", err, hg.FateOf(err))
	}
	if err := v.call(ctx, "square", int64(2), &sq); !errors.Is(err, hg.ErrPeerLost) && !errors.Is(err, hg.ErrUnreachable) {
		return fmt.Errorf("a call after the kill ended with %v", err)
	}
	return nil
}
