package main

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

const (
	calls    = 1000
	inFlight = 16 // number of handles
)

// calls has the target square the numbers from 1 to 1000, with 16 handles in flight. Each callback forwards its handle
// again with the next number, so there is no wait for individual calls.
func (o *origin) calls() (string, error) {
	o.say("calls: the target squares the numbers from 1 to %d, %d at a time", calls, inFlight)
	var (
		all       = o.waits.Create(nil)
		next, sum int64
		flying    int
		failed    error
		forward   func(h *hg.Handle)
	)
	answered := func(h *hg.Handle, err error) {
		flying--
		n, sq := h.Data().(int64), int64(0)
		if err == nil {
			err = h.Output(&sq)
		}
		if err == nil && sq != n*n {
			err = fmt.Errorf("the target says that %d² is %d", n, sq)
		}
		if err != nil && failed == nil {
			failed = err
		}
		if sum += sq; n == 1 || n == 2 || n == calls {
			o.say("       %d² = %d", n, sq)
		}
		forward(h)
	}
	forward = func(h *hg.Handle) {
		if failed == nil && next < calls {
			next++
			h.SetData(next)
			if failed = h.Forward(next, answered); failed == nil {
				flying++
				return
			}
		}
		h.Close()
		if flying == 0 && !all.Completed() {
			all.Complete(failed)
		}
	}
	handles := make([]*hg.Handle, inFlight)
	for i := range handles {
		h, err := o.hctx.Create(o.target, o.square)
		if err != nil {
			return "", err
		}
		handles[i] = h
	}
	for _, h := range handles {
		forward(h)
	}
	if err := all.WaitContext(o.ctx); err != nil {
		return "", err
	}
	if want := int64(calls) * (calls + 1) * (2*calls + 1) / 6; sum != want {
		return "", fmt.Errorf("the sum of the squares is %d, want %d", sum, want)
	}
	return fmt.Sprintf("%d calls with callbacks over %d handles, sum of the squares %d", calls, inFlight, sum), nil
}
