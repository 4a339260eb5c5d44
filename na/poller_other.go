//go:build !linux

package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// pollerSupported reports whether descriptors can be added on this system.
const pollerSupported = false

// A poller only sleeps and is woken here: plugins read their connections in goroutines of their own.
type poller struct {
	inletSet
	ch chan struct{}
}

func newPoller() (*poller, error) { return &poller{ch: make(chan struct{}, 1)}, nil }

func (p *poller) wait(d time.Duration) int { return p.sleep(d) }

// eventsAtOnce is more than one wait finds.
const eventsAtOnce = 2

func (p *poller) waitRounds() int { return 1 }

// peek asks nobody.
func (p *poller) peek() (came, asked bool) { return false, false }

// dispatch does nothing: there are no descriptors.
func (p *poller) dispatch(int) {}

// sleep waits for at most d (negative: no limit) until it is woken, and returns 1 if it was.
func (p *poller) sleep(d time.Duration) int {
	switch {
	case d < 0:
		<-p.ch
		return 1
	case d == 0:
		select {
		case <-p.ch:
			return 1
		default:
			return 0
		}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ch:
		return 1
	case <-t.C:
		return 0
	}
}

func (p *poller) wake() {
	select {
	case p.ch <- struct{}{}:
	default:
	}
}

func (p *poller) close() {}

// Add and its kin fail: endpoints give carriers no poller here.
func (p *poller) Add(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}
func (p *poller) AddEdge(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}
func (p *poller) AddShared(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}
func (p *poller) Watch(int, carrier.PollID, bool, bool) error { return ErrUnsupported }
func (p *poller) Remove(int, carrier.PollID)                  {}
