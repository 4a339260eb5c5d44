package na

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A drainFake is a fake endpoint whose peers still do something for some looks.
type drainFake struct {
	*fakeEndpoint
	drained  atomic.Int32
	looks    atomic.Int64
	asks     atomic.Int64
	confirms int64 // asks until peers have confirmed

	unconfirmed []Unconfirmed
	underway    func(look int64) Underway
}

func (e *drainFake) Drain()             { e.drained.Add(1) }
func (e *drainFake) Underway() Underway { return e.underway(e.looks.Add(1)) }

func (e *drainFake) Confirm(last bool) (peers, messages int) {
	if !last || e.asks.Add(1) < e.confirms {
		return 1, len(e.unconfirmed)
	}
	return 0, 0
}

func (e *drainFake) Unconfirmed() []Unconfirmed { return e.unconfirmed }

func newDrainFake(t *testing.T, cfg Config, underway func(look int64) Underway) (*Context, *drainFake) {
	c, e := newFake(t, cfg)
	d := &drainFake{fakeEndpoint: e, underway: underway, confirms: 1}
	c.ep = d
	return c, d
}

func TestShutdownWaits(t *testing.T) {
	t.Parallel()
	for name, u := range map[string]Underway{
		"Sends": {Sends: 1}, "Moves": {Moves: 1}, "Served": {Served: 1}, "Leases": {Leases: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, e := newDrainFake(t, Config{Linger: time.Hour}, func(look int64) Underway {
				if look <= 10 {
					return u
				}
				return Underway{}
			})
			e.confirms = 3
			begun := time.Now()
			require.NoError(t, c.Class().Shutdown(context.Background()))
			slow := time.Since(begun) > farewellTime // the machine is busy: it may have given up
			require.Greater(t, e.looks.Load(), int64(10))
			require.EqualValues(t, 1, e.drained.Load())
			require.True(t, e.asks.Load() == 3 || slow, "asked %d times whether peers have everything", e.asks.Load())
			require.True(t, c.Class().Closed())
			_, err := c.Class().NewContext()
			require.ErrorIs(t, err, ErrClosed)

			c, _ = newDrainFake(t, Config{Linger: -1}, func(int64) Underway { return u })
			err = c.Shutdown(context.Background())
			require.ErrorIs(t, err, ErrTimeout)
			require.ErrorContains(t, err, "Config.Linger")
			require.ErrorContains(t, err, "1 ")
			require.True(t, c.Closed())

			c, _ = newDrainFake(t, Config{Linger: -1}, func(look int64) Underway {
				if look < 3 {
					return u
				}
				return Underway{}
			})
			bounded, end := context.WithTimeout(context.Background(), time.Hour)
			defer end()
			require.NoError(t, c.Shutdown(bounded), "Linger does not count beside a deadline")
			require.True(t, c.Closed())

			c, _ = newDrainFake(t, Config{Linger: time.Hour}, func(int64) Underway { return u })
			cause := errors.New("in a hurry")
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(cause)
			require.ErrorIs(t, c.Shutdown(ctx), cause)
			require.True(t, c.Closed())
		})
	}
}

// Between two pieces of a peer's transfer nothing is under way: Shutdown waits until registered memory is left alone.
func TestShutdownWaitsForALull(t *testing.T) {
	var last time.Duration
	var c *Context
	c, _ = newDrainFake(t, Config{Linger: time.Hour}, func(look int64) Underway {
		if look <= 10 {
			last = c.Now()
		}
		return Underway{Reached: uint64(min(look, 10))}
	})
	m, err := c.Class().Register(ReadOnly, make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, c.Shutdown(context.Background()))
	require.GreaterOrEqual(t, c.Now()-last, lullTime)
	op := c.NewOp(func(*Op, Result) { t.Error("an operation of a context that is drained has ended") })
	require.ErrorIs(t, c.Deregister(op, m), ErrClosed)
	require.Zero(t, c.Trigger(0))
	require.Zero(t, c.Class().Regions(), "the memory is taken back all the same")
	require.True(t, c.Closed())
}

// Peers that confirm nothing are not waited for without end.
func TestShutdownOfSilentPeers(t *testing.T) {
	t.Parallel()
	c, e := newDrainFake(t, Config{}, func(int64) Underway { return Underway{} })
	e.confirms = 1 << 60
	require.NoError(t, c.Shutdown(context.Background()))
	require.Positive(t, e.asks.Load())
	require.True(t, c.Closed())
}

// A leader that is long in giving back what many peers had is waited for: everything has ended by itself.
func TestShutdownWaitsForTheLeader(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	c, e := newFakeOf(t, &fakePlugin{unassisted: true, now: func() time.Duration { return time.Duration(clock.Load()) }}, Config{Linger: time.Hour})
	leads, end := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(end) })
	defer free()
	work := func(time.Duration) { close(leads); <-end }
	e.onPoll.Store(&work)
	go func() { _ = c.Progress(0) }()
	<-leads
	e.onPoll.Store(nil)
	turns := 0
	ending := &Ending{Contexts: []*Context{c}, Drain: c.Drain, Cut: func() {}, Close: c.Close, Closed: c.Closed}
	ending.Idle = func(int) bool { return true }
	ending.Parted = func(int) bool { return true }
	ending.Trigger = func(int) int {
		if e.shut.Load() > 0 {
			clock.Add(int64(farewellTime))
			if turns++; turns == 20 {
				free()
			}
		}
		return c.Trigger(0)
	}
	require.NoError(t, ending.Run(context.Background()))
	require.True(t, c.Closed())
}

// The peers of one context that confirm nothing do not keep those of another from being asked.
func TestShutdownAsksPeersOfEveryContext(t *testing.T) {
	t.Parallel()
	underway := func(int64) Underway { return Underway{} }
	c, e := newDrainFake(t, Config{}, underway)
	e.confirms = 1 << 60
	c2, err := c.Class().NewContext()
	require.NoError(t, err)
	e2 := &drainFake{fakeEndpoint: c2.ep.(*fakeEndpoint), underway: underway, confirms: 1}
	c2.ep = e2
	require.NoError(t, c.Class().Shutdown(context.Background()))
	require.Positive(t, e.asks.Load())
	require.Positive(t, e2.asks.Load())
	require.True(t, c.Class().Closed())
}
