package bench

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// checkEcho sends a Pattern of size bytes and returns an error if the answer differs.
func (p *Perf) checkEcho(size int) error {
	c, err := p.newCall(append(slices.Clip(p.key), Pattern(size)...))
	if err != nil {
		return err
	}
	defer c.h.Close()
	var got []byte
	if p.API == "typed" {
		got, err = typedEcho.Call(context.Background(), p.to, c.in)
	} else if err = c.forward(); err == nil {
		got, err = c.h.OutputRaw()
	}
	if err == nil && !bytes.Equal(got, c.in[len(p.key):]) {
		err = fmt.Errorf("the response differs from the request")
	}
	return err
}

// A call is a handle that is used for one call after another.
type call struct {
	p    *Perf
	h    *hg.Handle
	in   []byte
	cb   hg.ForwardFunc
	done bool
	err  error
}

func (p *Perf) newCall(in []byte) (*call, error) {
	h, err := p.hctx.Create(p.peer, p.call)
	if err != nil {
		return nil, err
	}
	c := &call{p: p, h: h, in: in}
	c.cb = c.handleEnd
	return c, nil
}

func (c *call) handleEnd(_ *hg.Handle, err error) { c.done, c.err = true, err }

// callOnce makes a call, using the API that p.API selects, and waits for it to complete.
func (c *call) callOnce() error {
	switch {
	case c.p.API != "typed":
		return c.forward()
	case c.p.take:
		_, err := typedTake.Call(context.Background(), c.p.to, c.in)
		return err
	}
	out, err := typedEcho.Call(context.Background(), c.p.to, c.in)
	if err == nil && len(out) != len(c.in) { // Open has compared the bytes
		err = fmt.Errorf("the response has %d bytes, want %d", len(out), len(c.in))
	}
	return err
}

// forward forwards the handle and waits for the call to complete.
func (c *call) forward() error {
	if c.p.API != "callback" {
		_, err := c.h.CallRaw(context.Background(), c.in)
		return err
	}
	c.done = false
	if err := c.h.ForwardRaw(c.in, c.cb); err != nil {
		return err
	}
	for !c.done {
		if err := c.p.hctx.Progress(-1); err != nil {
			return err
		}
		c.p.hctx.Trigger(0)
	}
	return c.err
}

// measureLatencies makes calls, one after another, and returns their latencies in ascending order.
// It does not measure the first 100 calls.
func (p *Perf) measureLatencies(in []byte) ([]time.Duration, error) {
	c, err := p.newCall(in)
	if err != nil {
		return nil, err
	}
	defer c.h.Close()
	for i, end := 0, time.Now().Add(p.Time); i < 100 && p.goesOn(end); i++ { // warm-up
		if err := c.callOnce(); err != nil {
			return nil, err
		}
	}
	lat := make([]time.Duration, 0, 1<<18)
	for end := time.Now().Add(p.Time); ; {
		begun := time.Now()
		if len(lat) > 0 && (!begun.Before(end) || p.stopped.Load()) {
			break
		}
		if err := c.callOnce(); err != nil {
			return nil, err
		}
		lat = append(lat, time.Since(begun))
		if p.Pause > 0 {
			time.Sleep(p.Pause)
		}
	}
	slices.Sort(lat)
	return lat, p.ended(nil)
}

// measureRate measures the number of calls per second with n calls in flight.
func (p *Perf) measureRate(n int, in []byte) (float64, error) {
	if p.API != "callback" {
		return p.measureSyncRate(n, in)
	}
	f := &callLoop{in: in}
	f.cb = f.handleEnd
	begun := time.Now()
	for range n {
		c, err := p.newCall(nil)
		if err != nil {
			return 0, err
		}
		defer c.h.Close()
		if err := c.h.ForwardRaw(in, f.cb); err != nil {
			return 0, err
		}
		f.active++
	}
	for f.active > 0 {
		if err := p.hctx.Progress(-1); err != nil {
			return 0, err
		}
		p.hctx.Trigger(0)
		if !p.goesOn(begun.Add(p.Time)) {
			f.isOver = true
		}
		if p.Pause > 0 {
			time.Sleep(p.Pause)
		}
	}
	return float64(f.done) / time.Since(begun).Seconds(), p.ended(f.err)
}

// A callLoop makes calls with several handles. It forwards each handle again when its call
// completes.
type callLoop struct {
	in           []byte
	cb           hg.ForwardFunc
	active, done int
	isOver       bool
	err          error
}

func (f *callLoop) handleEnd(h *hg.Handle, err error) {
	f.done++
	if err == nil && !f.isOver {
		if err = h.ForwardRaw(f.in, f.cb); err == nil {
			return
		}
	}
	f.active--
	if err != nil && f.err == nil {
		f.err, f.isOver = err, true
	}
}

func (p *Perf) measureSyncRate(n int, in []byte) (float64, error) {
	var total atomic.Int64
	errs := make([]error, n)
	var all sync.WaitGroup
	begun := time.Now()
	end := begun.Add(p.Time)
	for i := range n {
		c, err := p.newCall(in)
		if err != nil {
			return 0, err
		}
		all.Go(func() {
			defer c.h.Close()
			ended := int64(0)
			for ; errs[i] == nil && (ended == 0 || p.goesOn(end)); ended++ { // at least one call, because a rate of 0 would be meaningless
				errs[i] = c.callOnce()
				if p.Pause > 0 {
					time.Sleep(p.Pause)
				}
			}
			total.Add(ended)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(total.Load()) / time.Since(begun).Seconds(), p.ended(nil)
}
