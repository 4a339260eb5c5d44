//go:build !linux

package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// pollerSupported reports whether this system supports adding descriptors.
const pollerSupported = false

// A poller blocks its context's leader until wake is called. It has no descriptors: on this system,
// plugins read each connection in a separate goroutine.
type poller struct {
	inletSet
	ch chan struct{}
}

func newPoller() (*poller, error) { return &poller{ch: make(chan struct{}, 1)}, nil }

func (p *poller) wait(d time.Duration) int { return p.sleep(d) }

// eventsAtOnce exceeds every result of wait, so that callers never assume that more descriptors are
// ready.
const eventsAtOnce = 2

func (p *poller) waitRounds() int { return 1 }

// peek always reports that there is nothing to poll.
func (p *poller) peek() (came, asked bool) { return false, false }

// dispatch does nothing because there are no descriptors.
func (p *poller) dispatch(int) {}

// sleep blocks until wake is called or d has elapsed. It returns 1 if wake was called and 0
// otherwise. If d is negative, sleep has no time limit.
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

// Add returns ErrUnsupported. On this system, carriers have no poller and do not call it.
func (p *poller) Add(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}

// AddEdge returns ErrUnsupported.
func (p *poller) AddEdge(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}

// AddShared returns ErrUnsupported.
func (p *poller) AddShared(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}

// Watch returns ErrUnsupported.
func (p *poller) Watch(int, carrier.PollID, bool, bool) error { return ErrUnsupported }

// Remove does nothing.
func (p *poller) Remove(int, carrier.PollID) {}
