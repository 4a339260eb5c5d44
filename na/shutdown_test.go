package na

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// never is more often than any test polls.
const never = 1 << 40

// A closingPeer is the peer of a session that is up. It looks whenever the context polls.
// Operations in flight with it end after a set number of looks, and so does a PING.
type closingPeer struct {
	testing.TB
	f       *fakeCarrier
	l       *session
	looks   int64
	opens   int64 // look from which it takes more than control frames, and gives back leases
	answers int64 // looks from a PING to its PONG
	onLook  func()

	asked int64 // look at which a PING arrived; 0: none
	ping  frame.Header
	lease *Mem // that it was given, or nil
	put   uint64
}

// newClosingPeer opens a class with a context that has the session with fakePeer.
func newClosingPeer(t testing.TB, cfg Config) (*Context, *closingPeer) {
	t.Helper()
	c, _ := newFakeOf(t, &fakePlugin{unassisted: true}, cfg)
	return c, connectPeer(t, c)
}

// connectPeer has fakePeer connect to a context.
func connectPeer(t testing.TB, c *Context) *closingPeer {
	t.Helper()
	p := &closingPeer{TB: t, f: fakeOf(c), answers: 1}
	e := c.ep
	e.Lock()
	defer e.Unlock()
	l, err := e.Admit(p.f, nil, p.hello(), true)
	require.NoError(t, err)
	p.l = l.(*session)
	look := p.exchange
	p.f.onPoll.Store(&look)
	return p
}

func (p *closingPeer) hello() *carrier.Greeting {
	return &carrier.Greeting{
		Versions: frame.Versions(), Incarnation: [16]byte{1}, Listen: fakePeer.Name(), Target: uint16(p.f.e.id), Envelopes: 8, Eager: 4096,
	}
}

// exchange takes the frames that there are for the peer, and gives those that it has.
func (p *closingPeer) exchange(time.Duration) {
	p.f.e.Lock()
	defer p.f.e.Unlock()
	p.looks++
	if p.l.Down() {
		return
	}
	if p.onLook != nil {
		p.onLook()
	}
	if p.lease != nil && p.looks > p.opens {
		p.deliver(frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: p.lease.Key().Token}})
		p.lease = nil
	}
	for w := p.pull(); w.taken; w = p.pull() {
		switch w.head.Kind {
		case frame.Ping:
			p.ping, p.asked = w.head, p.looks
		case frame.Put:
			p.put = w.head.Op
		case frame.Data:
			p.l.Sent(w.view)
			if w.head.Op == p.put {
				p.deliver(frame.Header{Kind: frame.Done, Op: p.put})
			}
		}
	}
	if p.asked > 0 && p.looks >= p.asked+p.answers {
		p.deliver(frame.Header{Kind: frame.Pong, Op: p.ping.Op, Tag: p.ping.Tag})
	}
}

// deliver delivers a frame of the peer. Locked.
func (p *closingPeer) deliver(h frame.Header) {
	h.Credit, h.Context = p.l.credits, uint16(p.f.e.id)
	require.NoError(p, p.l.Deliver(&h, nil))
}

// read has the peer begin to read m. Locked.
func (p *closingPeer) read(id uint64, m *Mem) {
	p.deliver(frame.Header{Kind: frame.Get, Op: id, Tail: frame.Tail{Token: m.Key().Token, Length: m.Len()}})
}

// smallParcel is a parcel without room for more than a control frame.
type smallParcel struct{ selfFrame }

func (p *smallParcel) Room() (whole, piece int) {
	whole, _ = p.selfFrame.Room()
	return min(whole, 0), 0
}

// pull takes a frame, as far as the peer has room. Locked.
func (p *closingPeer) pull() *selfFrame {
	if p.looks <= p.opens {
		w := &smallParcel{}
		p.l.Pull(carrier.Messages, w)
		return &w.selfFrame
	}
	w := &selfFrame{}
	p.l.Pull(carrier.Messages, w)
	return w
}

func TestShutdownWaits(t *testing.T) {
	t.Parallel()
	data := []byte("12345678")
	for name, begin := range map[string]func(c *Context, p *closingPeer){
		"Sends": func(c *Context, p *closingPeer) {
			require.NoError(p, c.SendUnexpected(c.NewOp(func(*Op, Result) {}), fakePeer, 0, data))
		},
		"Moves": func(c *Context, p *closingPeer) {
			m, err := c.Class().NewMem(data)
			require.NoError(p, err)
			require.NoError(p, c.Put(c.NewOp(func(*Op, Result) {}), m, 0, fakePeer, Key{Len: 8, Access: WriteOnly}, 0, 8))
		},
		"Served": func(c *Context, p *closingPeer) {
			m, err := c.Class().Register(ReadOnly, data)
			require.NoError(p, err)
			p.f.e.Lock()
			p.read(1, m)
			p.f.e.Unlock()
		},
		"Leases": func(c *Context, p *closingPeer) {
			m, err := c.Upper().Lease(c.NewOp(func(*Op, Result) {}), fakePeer, 0, data)
			require.NoError(p, err)
			p.lease = m
		},
	} {
		open := func(t *testing.T, cfg Config, opens int64) (*Context, *closingPeer) {
			c, p := newClosingPeer(t, cfg)
			p.opens = opens
			begin(c, p)
			u := c.Upper().Underway()
			require.Equal(t, 1, u.Sends+u.Moves+u.Served+u.Leases)
			return c, p
		}
		t.Run(name, func(t *testing.T) {
			c, p := open(t, Config{Linger: time.Hour}, 10)
			p.answers = 3
			begun := time.Now()
			require.NoError(t, c.Class().Shutdown(context.Background()))
			slow := time.Since(begun) > ackTime // the machine is busy: it may have given up
			require.Greater(t, p.looks, int64(10))
			require.True(t, c.ep.draining)
			require.Positive(t, p.asked, "whether the peer has everything")
			require.True(t, p.l.confirmed || slow, "closed before the peer has answered: polled %d times, probed at the %d-th", p.looks, p.asked)
			require.True(t, c.Class().Closed())
			_, err := c.Class().NewContext()
			require.ErrorIs(t, err, ErrClosed)

			c, _ = open(t, Config{Linger: -1}, never)
			err = c.Shutdown(context.Background())
			require.ErrorIs(t, err, ErrTimeout)
			require.ErrorContains(t, err, "(na.Config.Linger)")
			require.ErrorContains(t, err, "1 ")
			require.True(t, c.Closed())

			c, _ = open(t, Config{Linger: -1}, 3)
			bounded, end := context.WithTimeout(context.Background(), time.Hour)
			defer end()
			require.NoError(t, c.Shutdown(bounded), "Linger does not count beside a deadline")
			require.True(t, c.Closed())

			c, _ = open(t, Config{Linger: time.Hour}, never)
			cause := errors.New("in a hurry")
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(cause)
			require.ErrorIs(t, c.Shutdown(ctx), cause)
			require.True(t, c.Closed())
		})
	}
}

// TestShutdownWaitsForIdleMemory checks that Shutdown waits until no transfer has used registered memory
// for a while: nothing is in flight between two pieces of a peer's transfer.
func TestShutdownWaitsForIdleMemory(t *testing.T) {
	c, p := newClosingPeer(t, Config{Linger: time.Hour})
	m, err := c.Class().Register(ReadOnly, make([]byte, 8))
	require.NoError(t, err)
	var last time.Duration
	p.onLook = func() {
		if p.looks <= 10 {
			last = c.Now()
			p.read(uint64(p.looks), m)
		}
	}
	require.NoError(t, c.Shutdown(context.Background()))
	require.EqualValues(t, 10*8, m.Served())
	require.GreaterOrEqual(t, c.Now()-last, lullTime)
	op := c.NewOp(func(*Op, Result) { t.Error("an operation of a context that is drained has ended") })
	require.ErrorIs(t, c.Deregister(op, m), ErrClosed)
	require.Zero(t, c.Trigger(0))
	require.Zero(t, c.Class().Regions(), "the memory is taken back all the same")
	require.True(t, c.Closed())
}

// TestShutdownOfSilentPeers checks that Shutdown does not wait without end for peers that confirm
// nothing.
func TestShutdownOfSilentPeers(t *testing.T) {
	t.Parallel()
	c, p := newClosingPeer(t, Config{})
	p.answers = never
	require.NoError(t, c.Shutdown(context.Background()))
	require.Positive(t, p.asked)
	require.True(t, c.Closed())
}

// TestShutdownWaitsForTheLeader checks that Shutdown waits for a leader that takes long to give
// back what many peers had: everything has ended by itself.
func TestShutdownWaitsForTheLeader(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	clock.Store(1)
	c, f := newFakeOf(t, &fakePlugin{unassisted: true, now: func() time.Duration { return time.Duration(clock.Load()) }}, Config{Linger: time.Hour})
	leads, end := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(end) })
	defer free()
	work := func(time.Duration) { close(leads); <-end }
	f.onPoll.Store(&work)
	go func() { _ = c.Progress(0) }()
	<-leads
	f.onPoll.Store(nil)
	turns := 0
	ending := &Shutdown{Contexts: []*Context{c}, Drain: c.Drain, CancelRest: func(error) {}, Close: c.Close, Closed: c.Closed}
	ending.Idle = func(int) bool { return true }
	ending.NoMoreReplies = func(int) bool { return true }
	ending.Trigger = func(int) int {
		if f.shut.Load() > 0 {
			clock.Add(int64(ackTime))
			if turns++; turns == 20 {
				free()
			}
		}
		return c.Trigger(0)
	}
	require.NoError(t, ending.Run(context.Background()))
	require.True(t, c.Closed())
}

// TestShutdownAsksPeersOfEveryContext checks that peers of one context that confirm nothing do not
// delay the questions to the peers of another.
func TestShutdownAsksPeersOfEveryContext(t *testing.T) {
	t.Parallel()
	c, silent := newClosingPeer(t, Config{})
	silent.answers = never
	c2, err := c.Class().NewContext()
	require.NoError(t, err)
	other := connectPeer(t, c2)
	require.NoError(t, c.Class().Shutdown(context.Background()))
	require.Positive(t, silent.asked)
	require.Positive(t, other.asked)
	require.True(t, c.Class().Closed())
}
