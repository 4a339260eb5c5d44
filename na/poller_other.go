//go:build !linux

package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// pollerSupported reports whether descriptors can be added on this system.
const pollerSupported = false

// A poller of this system only sleeps and is woken: plugins read their connections in goroutines of
// their own.
type poller struct {
	inletSet
	ch chan struct{}
}

func newPoller() (*poller, error) { return &poller{ch: make(chan struct{}, 1)}, nil }

func (p *poller) wait(d time.Duration) int { return p.sleep(d) }

// eventsAtOnce is larger than any result of wait.
const eventsAtOnce = 2

func (p *poller) waitRounds() int { return 1 }

// peek reports that there is nothing to poll.
func (p *poller) peek() (came, asked bool) { return false, false }

// dispatch does nothing, because there are no descriptors.
func (p *poller) dispatch(int) {}

// sleep blocks for at most d (negative: no limit) until wake, and returns 1 if it was woken.
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

// Add is not supported: carriers get no poller on this system.
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
