package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A target is a process, and over tcp the relay through which it is reached.
type target struct {
	i     int
	begin func(log, addr string) (*self.Child, error)
	addr  string // of the process
	peer  na.Addr
	relay *relay
	log   string

	mu    sync.Mutex // guards child
	child *self.Child
}

// startTarget starts target i.
func (s *soak) startTarget(i int) (*target, error) {
	t := &target{i: i, log: filepath.Join(s.dir, strconv.Itoa(i))}
	t.begin = s.Start
	if err := t.start(s.Listen); err != nil {
		return nil, err
	}
	t.addr = t.child.Addr
	to, err := t.addr, error(nil)
	if over, ok := strings.CutPrefix(to, "tcp://"); ok {
		if t.relay, err = newRelay(over); err == nil {
			to = "tcp://" + t.relay.addr()
		}
	}
	if err == nil {
		t.peer, err = na.ParseAddr(to)
	}
	if err != nil {
		t.stop()
		return nil, err
	}
	return t, nil
}

// start starts the process.
func (t *target) start(addr string) error {
	c, err := t.begin(t.log, addr)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.child = c
	t.mu.Unlock()
	return nil
}

func (t *target) pid() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.child.Cmd.Process.Pid
}

// stop ends the process and its relay; it may be called again.
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

// chaos does one thing after the other to targets, but the first, until ctx ends, and puts each right again. All kinds come once
// before one comes again, and once is closed when they have, or cannot. A reset of no connection does not count, nor does a stall that held
// nothing: they come again.
func (s *soak) chaos(ctx context.Context, once chan<- struct{}) {
	all := sync.OnceFunc(func() { close(once) })
	defer all()
	rng := rand.New(rand.NewPCG(s.Seed, 3))
	var kinds []string
	for len(s.Faults) > 0 && s.broken == nil && pause(ctx, time.Duration(rng.ExpFloat64()*float64(s.Every))) {
		t := s.targets[1+rng.IntN(len(s.targets)-1)]
		if len(kinds) == 0 {
			kinds = slices.Clone(s.Faults)
			rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		kind := kinds[0]
		kinds = kinds[1:]
		last := time.Duration(rng.Int64N(int64(s.PeerTimeout)))
		if rng.IntN(2) == 0 {
			last += s.PeerTimeout // the peer is lost meanwhile
		}
		fmt.Fprintf(s.Log, "soak: %s target %d for %v\n", kind, t.i, last.Round(time.Millisecond))
		struck := 1
		switch kind {
		case "kill":
			_ = t.child.Cmd.Process.Kill()
			_ = t.child.Cmd.Wait()
			pause(ctx, last/4)
			if err := t.start(t.addr); err != nil {
				s.broken = fmt.Errorf("target %d does not start again: %w", t.i, err)
			}
		case "stop":
			if err := stopProcess(t.child.Cmd.Process); err != nil {
				s.broken = err
			}
			pause(ctx, last)
			if err := resumeProcess(t.child.Cmd.Process); err != nil {
				s.broken = err
			}
		case "reset":
			struck = t.relay.reset()
		case "stall":
			t.relay.hold(1 + rng.IntN(3))
			pause(ctx, last)
			struck = t.relay.hold(0)
		}
		if struck == 0 {
			kinds = append(kinds, kind)
			continue
		}
		s.faults[kind]++
		if len(kinds) == 0 {
			all()
		}
	}
}
