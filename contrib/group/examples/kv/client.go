package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/contrib/group"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// peers are the Peers of the members, by name.
type peers struct {
	node     *qs.Node
	resolver qs.Resolver
	mu       sync.Mutex // guards all
	all      map[string]qs.Peer
}

// of returns the Peer of a member. It is an error if there is no member of that name now.
func (p *peers) of(ctx context.Context, name string) (qs.Peer, error) {
	p.mu.Lock()
	peer, ok := p.all[name]
	p.mu.Unlock()
	if ok {
		return peer, nil
	}
	peer, err := p.node.PeerWith(ctx, qs.PeerOptions{Resolver: p.resolver}, name)
	if err == nil {
		p.mu.Lock()
		p.all[name] = peer
		p.mu.Unlock()
	}
	return peer, err
}

// A Client reads and writes keys at quorums of their owners.
//
//	Put: versions of 2 of 3 ─► the next one, to all 3 ─► acknowledged by 2
//	Get: versions of 2 of 3, a third asked when one is slow, and the slowest call withdrawn ─► the newest, to 2 of 3 if they differ
type Client struct {
	node   *qs.Node
	names  []string
	peers  *peers
	writer string // no other's
	need   int    // acknowledgements of a write
	hedge  time.Duration

	mu   sync.Mutex // guards the fields below
	high uint64     // the largest count of a version seen
}

func newClient(node *qs.Node, names []string, p *peers, writer string) *Client {
	return &Client{node: node, names: names, peers: p, writer: writer, need: quorum, hedge: 50 * time.Millisecond}
}

// writeTime bounds a write to one owner.
const writeTime = 10 * time.Second

// A reply is what one owner answered.
type reply[Out any] struct {
	name string
	peer qs.Peer
	out  Out
	err  error
}

// ask calls each owner of key, those after the first few only when one has failed or hedge has passed, until enough have answered well,
// and returns those answers. late is called with each call that is left then.
// The calls end with calling, which may outlast ctx.
func ask[In, Out any](ctx, calling context.Context, c *Client, m *qs.Method[In, Out], key string, in func() In, first, enough int, late func(*qs.Future[Out])) (good []reply[Out], errs []error) {
	owners := group.Owners(c.names, key, copies)
	var mu sync.Mutex
	var ended []reply[Out]
	wake := make(chan struct{}, copies)
	calls := map[string]*qs.Future[Out]{}
	begin := func(name string) {
		to, err := c.peers.of(ctx, name)
		if err != nil {
			ended = append(ended, reply[Out]{name: name, err: notSent(m.Name(), err)})
			return
		}
		f := m.Go(calling, to, in())
		calls[name] = f
		c.node.HG().NA().Spawn(func() {
			out, err := f.Wait(context.Background())
			mu.Lock()
			ended = append(ended, reply[Out]{name, to, out, err})
			mu.Unlock()
			wake <- struct{}{}
			c.node.HG().Wake()
		})
	}
	next := 0
	for len(good) < enough && (next < len(owners) || len(calls)+len(ended) > 0) && ctx.Err() == nil {
		for next < len(owners) && next < first {
			next++
			begin(owners[next-1])
		}
		mu.Lock()
		got := ended
		ended = nil
		mu.Unlock()
		for _, r := range got {
			if delete(calls, r.name); r.err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", r.name, r.err))
				first++
			} else {
				good = append(good, r)
			}
		}
		if len(got) == 0 && !c.waits(ctx, wake, next < len(owners)) {
			first++
		}
	}
	for _, name := range owners {
		if f := calls[name]; f != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, &hg.Error{Op: "forward", RPC: m.Name(), Fate: qs.MaybeRan, Err: qs.ErrTimeout}))
			c.node.HG().NA().Spawn(func() { late(f) })
		}
	}
	return good, errs
}

// waits waits for an element of wake; with hedged not longer than c.hedge, and reports whether there was one.
func (c *Client) waits(ctx context.Context, wake chan struct{}, hedged bool) bool {
	limit := time.Hour
	if hedged {
		limit = c.hedge
	}
	if c.node.HG().NA().Scheduled() {
		_ = c.node.HG().WaitFor(ctx, limit, func() bool { return len(wake) > 0 })
		select {
		case <-wake:
			return true
		default:
			return false
		}
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-wake:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// notSent is the error of a call that did not begin.
func notSent(method string, err error) error {
	return &hg.Error{Op: "forward", RPC: method, Fate: qs.NotRun, Err: err}
}

// without is the end of an operation that changed nothing, for want of a quorum.
func without(op, key string, errs []error) error {
	return notSent("kv/"+op, qs.Errorf(qs.ErrUnavailable, "%s of %q: %d owners did not answer: %v", op, key, len(errs), errors.Join(errs...)))
}

// next returns a version newer than v.
func (c *Client) next(v Version) Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.high = max(c.high, v.N) + 1
	return Version{c.high, c.writer}
}

// Put writes value. After nil it is at a quorum. FateOf an error says NotRun if it is nowhere; else it may be read, now or later.
// Nobody changes
// value afterwards, since an owner may still be about to read it.
func (c *Client) Put(ctx context.Context, key string, value []byte) error {
	stats, errs := ask(ctx, ctx, c, stat, key, func() string { return key }, copies, quorum, abandon[Stat])
	if len(stats) < quorum {
		return without("put", key, errs)
	}
	return c.store(ctx, key, c.next(newest(stats).out.Version), value)
}

// store writes a version to a quorum.
func (c *Client) store(ctx context.Context, key string, v Version, value []byte) error {
	calling, _ := c.node.HG().NA().WithTimeout(context.WithoutCancel(ctx), writeTime) // the third owner may be slow, and gets it all the same
	good, errs := ask(ctx, calling, c, write, key, func() Write { return Write{key, v, qs.Bytes(value)} }, copies, c.need, wait[struct{}])
	if len(good) >= c.need {
		return nil
	}
	fate := hg.Fate(qs.NotRun)
	if len(good) > 0 {
		fate = qs.MaybeRan
	}
	for _, err := range errs {
		if qs.FateOf(err) != qs.NotRun {
			fate = qs.MaybeRan
		}
	}
	return &hg.Error{Op: "forward", RPC: "kv/put", Fate: fate,
		Err: qs.Errorf(qs.ErrUnavailable, "put of %q: %d of %d owners have it: %v", key, len(good), copies, errors.Join(errs...))}
}

// Get returns the value of key, and whether there is one. What it returns is at a quorum: a later Get returns nothing older.
func (c *Client) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	stats, errs := ask(ctx, ctx, c, stat, key, func() string { return key }, quorum, quorum, c.withdraw)
	if len(stats) < quorum {
		return nil, false, without("get", key, errs)
	}
	newest := newest(stats)
	v, value := newest.out.Version, newest.out.Value
	if v == (Version{}) {
		return nil, false, nil
	}
	if newest.out.Size > small {
		var b bytes.Buffer
		if v, err = fetch.Call(ctx, newest.peer, Fetch{key, qs.Writer(&b)}); err != nil {
			return nil, false, fmt.Errorf("get of %q: %w", key, err)
		}
		value = b.Bytes()
	}
	for _, s := range stats {
		if s.out.Version != v { // an owner lacks it: it is repaired before anybody relies on it
			return value, true, c.store(ctx, key, v, bytes.Clone(value))
		}
	}
	return value, true, nil
}

func newest(stats []reply[Stat]) reply[Stat] {
	best := stats[0]
	for _, s := range stats[1:] {
		if s.out.Version.compare(best.out.Version) > 0 {
			best = s
		}
	}
	return best
}

// withdraw spares an owner a read that nobody needs.
func (c *Client) withdraw(f *qs.Future[Stat]) {
	ctx, stop := c.node.HG().NA().WithTimeout(context.Background(), time.Second)
	defer stop()
	if f.Withdraw(ctx) == hg.TooLate {
		f.Abandon()
	}
}

func abandon[Out any](f *qs.Future[Out]) { f.Abandon() }

// wait lets a call go on until it ends by itself.
func wait[Out any](f *qs.Future[Out]) { _, _ = f.Wait(context.Background()) }

// namesOf returns the names of n owners.
func namesOf(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("kv-%d", i))
	}
	return names
}

// rankOf returns the number at the end of a name.
func rankOf(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }
