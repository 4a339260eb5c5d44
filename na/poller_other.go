//go:build !linux

package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// pollerSupported reports whether this system supports adding descriptors.
const pollerSupported = false

// A poller on this system only sleeps and is woken. Plugins read each connection in its own
// goroutine.
type poller struct {
	inletSet
	ch chan struct{}
}

func newPoller() (*poller, error) { return &poller{ch: make(chan struct{}, 1)}, nil }

func (p *poller) wait(d time.Duration) int { return p.sleep(d) }

// eventsAtOnce is larger than any result of wait.
const eventsAtOnce = 2

func (p *poller) waitRounds() int { return 1 }

// peek always reports that there is nothing to poll.
func (p *poller) peek() (came, asked bool) { return false, false }

// dispatch does nothing because there are no descriptors.
func (p *poller) dispatch(int) {}

// sleep blocks until wake is called or d has elapsed, and returns 1 if it was woken. If d is
// negative it blocks without limit.
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

// Add is not supported. Carriers get no poller on this system.
func (p *poller) Add(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}

// AddEdge is not supported.
func (p *poller) AddEdge(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}

// AddShared is not supported.
func (p *poller) AddShared(int, carrier.Pollable) (carrier.PollID, error) {
	return carrier.PollID{}, ErrUnsupported
}

// Watch is not supported.
func (p *poller) Watch(int, carrier.PollID, bool, bool) error { return ErrUnsupported }

// Remove does nothing.
func (p *poller) Remove(int, carrier.PollID) {}
