//go:build !linux

package na

import "time"

// PollerSupported reports whether descriptors can be added on this system.
const PollerSupported = false

// A Poller only sleeps and is woken here: plugins read their connections in goroutines of their own.
type Poller struct {
	bells
	ch chan struct{}
}

func newPoller() (*Poller, error) { return &Poller{ch: make(chan struct{}, 1)}, nil }

func (p *Poller) wait(d time.Duration) int { return p.sleep(d) }

// eventsAtOnce is more than one wait finds.
const eventsAtOnce = 2

func (p *Poller) rounds() int { return 1 }

// peek asks nobody.
func (p *Poller) peek() (came, asked bool) { return false, false }

// dispatch does nothing: there are no descriptors.
func (p *Poller) dispatch(int) {}

// sleep waits for at most d (negative: no limit) until it is woken, and returns 1 if it was.
func (p *Poller) sleep(d time.Duration) int {
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

func (p *Poller) wake() {
	select {
	case p.ch <- struct{}{}:
	default:
	}
}

func (p *Poller) close() {}
