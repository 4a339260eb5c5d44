package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// kill kills the target while it holds a request.
func (o *origin) kill() (string, error) {
	o.say("kill: the target dies while it has a request")
	h, err := o.hctx.Create(o.target, o.hold)
	if err != nil {
		return "", err
	}
	defer h.Close()
	call, fault := o.waits.Create(h.Cancel), o.waits.Create(nil)
	o.holding = o.waits.Create(nil)
	var lost hg.Addr
	o.onFault = func(peer hg.Addr) {
		lost = peer
		fault.Complete(nil)
	}
	if err := h.Forward(false, func(_ *hg.Handle, err error) { call.Complete(err) }); err != nil {
		return "", err
	}
	if err := o.holding.WaitContext(o.ctx); err != nil {
		return "", err
	}
	killed := time.Now()
	o.child.kill()
	err = call.WaitContext(o.ctx)
	if err := fault.WaitContext(o.ctx); err != nil {
		return "", fmt.Errorf("no fault callback: %w", err)
	}
	took := time.Since(killed).Round(10 * time.Microsecond)
	fate := hg.FateOf(err)
	o.say("       %v\n       OnFault: lost %v", err, lost)
	if !errors.Is(err, hg.ErrPeerLost) || fate != hg.MaybeRan || lost.Named() != o.target.Named() {
		return "", fmt.Errorf("the call ended with %v (%v), the fault was of %v", err, fate, lost)
	}
	return fmt.Sprintf("peer lost, the request %v; both callbacks had run %v after the kill", fate, took), nil
}
