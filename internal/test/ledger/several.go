package ledger

import (
	"context"
	"errors"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// callFirst makes two or three calls; the first that succeeds has the others abandoned.
func (c *caller) callFirst() error {
	var rs []*request
	var fs []*qs.Future[askAnswer]
	for range 2 + c.rng.IntN(2) {
		r := c.newRequest()
		r.how = DeedFirst
		if c.rng.IntN(2) == 0 {
			r.in.Act, r.in.Pause = actPause, c.drawPause()
		}
		r.recordBegin()
		_, begin := r.callFuncs()
		rs, fs = append(rs, r), append(fs, begin().(*qs.Future[askAnswer]))
	}
	ctx, cancel := c.node.HG().NA().WithTimeout(context.Background(), 8*c.drawPause())
	i, out, err := qs.WaitFirst(ctx, fs...)
	cancel()
	if err == nil {
		if out.ID != rs[i].id {
			c.Book.addWrong("First says that call %v has succeeded, with the answer of %v", rs[i].id, out.ID)
		}
		for j, f := range fs {
			select {
			case <-f.Done():
			default:
				if !c.cut.Load() { // in the simulator no goroutine waits with a closed Node
					c.Book.addWrong("call %v goes on when First has returned", rs[j].id)
				}
			}
		}
	}
	var errs []error
	for i, r := range rs {
		errs = append(errs, r.wait(fs[i]))
	}
	return errors.Join(errs...)
}

// callAll makes one call to several peers.
func (c *caller) callAll() error {
	r := c.newRequest()
	if c.rng.IntN(2) == 0 {
		r.in.Act, r.in.Pause = actPause, c.drawPause()
	}
	var peers []qs.Peer
	for _, i := range c.rng.Perm(len(c.peers))[:min(len(c.peers), 2+c.rng.IntN(2))] {
		peers = append(peers, c.peers[i])
	}
	r.times = len(peers)
	r.recordBegin()
	m := asks
	if r.again {
		m = asksAgain
	}
	least, most := 0, 0
	outs, errs := qs.CallAll(r.ctx, peers, m, r.in)
	for i, err := range errs {
		fate := qs.FateOf(err)
		if fate == qs.Ran {
			least++
		}
		if fate != qs.NotRun {
			most++
		}
		if text := checkError(err); text != "" {
			c.Book.addWrong("call %v: %s: %v", r.id, text, err)
		}
		if err == nil && outs[i].ID != r.id {
			c.Book.addWrong("call %v: a wrong answer, of call %v", r.id, outs[i].ID)
		}
	}
	c.Book.addRuns(r.id, least, most)
	attempts := int(r.attempts.Load())
	if !c.nodeLife.attempts {
		attempts = len(peers)
	}
	err := errors.Join(errs...)
	worst := err
	if least == len(peers) && err != nil && qs.FateOf(err) != qs.Ran {
		c.Book.addWrong("call %v ran at all peers, and the joined error says %v", r.id, qs.FateOf(err))
	}
	for _, e := range errs {
		if e == nil {
			worst = nil // it has succeeded somewhere
		}
	}
	r.Book.addEnd(r.id, attempts, worst)
	return err
}
