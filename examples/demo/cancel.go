package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// patience is how long the origin waits before it cancels the call.
const patience = 500 * time.Millisecond

// cancel forwards a call that is not answered, cancels it after patience, and forwards the same
// handle again.
func (o *origin) cancel() (string, error) {
	o.say("cancel: a call that the target keeps and does not answer")
	h, err := o.hctx.Create(o.target, o.hold)
	if err != nil {
		return "", err
	}
	defer h.Close()
	before := o.hctx.Stats().NA

	done := o.waits.Create(nil)
	o.holding = o.waits.Create(nil)
	callback := func(_ *hg.Handle, err error) { done.Complete(err) }
	if err := h.Forward(false, callback); err != nil {
		return "", err
	}
	if done.Wait(patience) {
		return "", fmt.Errorf("the call ended, it should not: %v", done.Err())
	}
	if err := o.holding.WaitContext(o.ctx); err != nil { // it arrived long ago, unless this machine is very busy
		return "", err
	}
	o.say("       no answer in %v, although the target has the request", patience)

	h.Cancel()
	o.hctx.Trigger(0) // no call to Progress in between: nothing has to be sent or received
	if !done.Completed() {
		return "", errors.New("the callback did not run in Cancel and Trigger")
	}
	err = done.Err()
	canceled, fate := errors.Is(err, context.Canceled), hg.FateOf(err)
	o.say("       %v\n       errors.Is(err, context.Canceled): %t, the request %v", err, canceled, fate)
	if !canceled || fate != hg.MaybeRan {
		return "", fmt.Errorf("the canceled call ended with %v, the request %v", err, fate)
	}

	done.Reset(h.Cancel)
	if err := h.Forward(true, callback); err != nil {
		return "", err
	}
	if err := done.WaitContext(o.ctx); err != nil {
		return "", err
	}
	var answer string
	if err := h.Output(&answer); err != nil {
		return "", err
	}
	after := o.hctx.Stats().NA
	late, lost := after.LateDropped-before.LateDropped, after.PeersLost-before.PeersLost
	o.say("       the same handle again: %q; late answers dropped: %d, peers connected: %d", answer, late, after.Peers)
	if answer != "here I am" || late != 1 || after.Peers != 1 || lost != 0 {
		return "", fmt.Errorf("the answer is %q, %d late answers were dropped, %d peers are connected, %d were lost", answer, late,
			after.Peers, lost)
	}
	return "canceled after " + patience.String() + ", forwarded again with success, late answer dropped, 1 peer", nil
}
