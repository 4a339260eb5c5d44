package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
)

// A victim is a target or origin process to which faults are applied.
type victim interface {
	fmt.Stringer
	process() *self.Child
	start() error // starts the process, or restarts it after a fault
	handleEnd(killed bool)
	net() *relay // relay for the process's connections; nil if there is none
}

// A target is a target's process and, if the transport is tcp, the relay through which origins reach it.
type target struct {
	s       *soak
	i       int
	listen  string // address to listen on, as passed to the process
	reached string // address at which origins reach the target
	relay   *relay // gives the target a fixed address, although a restarted process has another port; nil if there is none

	mu    sync.Mutex // guards child
	child *self.Child
}

// startTarget starts the target with index i.
func (s *soak) startTarget(i int) (t *target, err error) {
	t = &target{s: s, i: i, listen: s.Listen}
	if hasConnections(s.Transport) {
		if t.relay, err = newRelay(); err != nil {
			return nil, err
		}
		t.reached = "tcp://" + t.relay.addr()
	}
	if err := t.start(); err != nil {
		t.stop()
		return nil, err
	}
	if t.relay == nil {
		t.listen, t.reached = t.child.Addr, t.child.Addr
	}
	return t, nil
}

// start starts the process. If there is a relay, the process selects a new port each time, because another program may
// have taken the previous one.
func (t *target) start() error {
	c, err := t.s.StartTarget(t.s.bookPath("target", uint64(t.i)), t.listen)
	if err != nil {
		return err
	}
	if t.relay != nil {
		t.relay.setTarget(strings.TrimPrefix(c.Addr, "tcp://"))
	}
	t.mu.Lock()
	t.child = c
	t.mu.Unlock()
	return nil
}

func (t *target) String() string       { return fmt.Sprint("target ", t.i) }
func (t *target) process() *self.Child { return t.child }
func (t *target) handleEnd(bool)       {}
func (t *target) net() *relay          { return t.relay }

func (t *target) pid() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.child.Cmd.Process.Pid
}

// stop terminates the process and closes the relay. It may be called more than once.
func (t *target) stop() {
	t.mu.Lock()
	c := t.child
	t.child = nil
	t.mu.Unlock()
	if c != nil {
		c.Stop()
	}
	if t.relay != nil {
		t.relay.close()
	}
}

// An origin is an origin's process. When the process is restarted, it receives a new number.
type origin struct {
	s      *soak
	number uint64
	child  *self.Child
}

func (o *origin) start() (err error) {
	c := o.s.newCalls()
	o.number = c.Number
	o.child, err = o.s.StartOrigin(o.s.bookPath("origin", c.Number), c)
	return err
}

func (o *origin) String() string       { return fmt.Sprint("origin ", o.number) }
func (o *origin) process() *self.Child { return o.child }
func (o *origin) net() *relay          { return nil }

// handleEnd records that the process has exited. If the process was killed, the audit must not expect that its book
// contains the completion of all calls.
func (o *origin) handleEnd(killed bool) {
	if killed {
		o.s.mu.Lock()
		o.s.died[o.number] = true
		o.s.mu.Unlock()
	}
}

// listVictims returns the processes to which faults may be applied. These are all except the first target and the first
// origin.
func (s *soak) listVictims() (all []victim) {
	for _, t := range s.targets[1:] {
		all = append(all, t)
	}
	for _, o := range s.origins {
		all = append(all, o)
	}
	return all
}

// runFaults applies faults to v, one after another, and repairs each before the next. It returns when ctx is done.
// Every kind of fault is applied once before any is repeated. A reset without connections and a stall that delays no
// data are not counted.
func (s *soak) runFaults(ctx context.Context, v victim, rng *rand.Rand) {
	every := float64(s.Every) * float64(len(s.listVictims()))
	var kinds []string
	for s.failure() == nil && pause(ctx, time.Duration(rng.ExpFloat64()*every)) {
		if len(kinds) == 0 {
			kinds = slices.DeleteFunc(slices.Clone(s.Faults), func(k string) bool { return needsRelay(k) && v.net() == nil })
			rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		if len(kinds) == 0 {
			return
		}
		kind := kinds[0]
		kinds = kinds[1:]
		last := time.Duration(rng.Int64N(int64(s.PeerTimeout)))
		if rng.IntN(2) == 0 {
			last += s.PeerTimeout // long enough for peers to consider the process lost
		}
		fmt.Fprintf(s.Log, "soak: %s %v for %v\n", kind, v, last.Round(time.Millisecond))
		struck, err := s.applyFault(ctx, v, kind, last, 1+rng.IntN(3))
		if err != nil {
			s.fail(err)
		}
		if struck {
			s.mu.Lock()
			s.faults[kind]++
			s.mu.Unlock()
		}
	}
}

// applyFault applies a fault to v, repairs it after the duration last, and reports whether it had an effect. The
// parameter directions selects the directions of a stall, as for holdBack.
func (s *soak) applyFault(ctx context.Context, v victim, kind string, last time.Duration, directions int) (struck bool, err error) {
	p := v.process()
	switch kind {
	case "kill":
		_ = p.Cmd.Process.Kill()
		_ = p.Cmd.Wait()
		v.handleEnd(true)
	case "end":
		v.handleEnd(!p.End(s.patience()))
	case "stop":
		if err := stopProcess(p.Cmd.Process); err != nil {
			return false, err
		}
		pause(ctx, last)
		return true, resumeProcess(p.Cmd.Process)
	case "reset":
		return v.net().reset() > 0, nil
	case "stall":
		v.net().holdBack(directions)
		pause(ctx, last)
		return v.net().holdBack(0) > 0, nil
	}
	pause(ctx, last/8)
	for range 40 { // over udp, a socket of another process may occupy the port for a short time
		if err = v.start(); err == nil {
			return true, nil
		}
		pause(context.Background(), 50*time.Millisecond)
	}
	return false, fmt.Errorf("restart %v: %w", v, err)
}
