package quicksilver

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Peer is one or more addresses of a service, or the origin of a request. It is copied freely; copies are the same Peer.
type Peer struct{ p *peer }

type peer struct {
	n *Node
	i int // of the context that calls leave by

	addrs []hg.Addr
	one   [1]hg.Addr // behind addrs, if there is one

	mu    sync.Mutex      // guards the fields below
	avoid []time.Duration // until when, by address
}

// avoidTime is how long an address is not tried first after it has failed.
const avoidTime = time.Second

// Peer resolves addresses of one service, in order of preference: a call goes to the first that has not failed within the last
// second. It dials none. An address whose host cannot be found is left out, unless none is left. One that cannot be an address of
// n's transport is an error, which matches ErrInvalid or ErrUnsupported.
func (n *Node) Peer(ctx context.Context, addrs ...string) (Peer, error) {
	var found []hg.Addr
	var errs []error
	for _, text := range addrs {
		addr, err := n.hctx.LookupWait(ctx, text)
		switch hg.CodeOf(err) {
		case na.OK:
			found = append(found, addr)
		case ErrInvalid, ErrUnsupported:
			return Peer{}, fmt.Errorf("quicksilver: peer: %w", err)
		default:
			errs = append(errs, err)
		}
	}
	switch {
	case len(addrs) == 0:
		return Peer{}, fmt.Errorf("quicksilver: peer: no address is given: %w", hg.ErrInvalid)
	case len(found) == 0:
		return Peer{}, fmt.Errorf("quicksilver: peer: %w", errors.Join(errs...))
	}
	p := &peer{n: n, addrs: found, avoid: make([]time.Duration, len(found))}
	if len(n.all) > 1 {
		p.i = int(maphash.String(seed, found[0].String()) % uint64(len(n.all)))
	}
	return Peer{p}, nil
}

var seed = maphash.MakeSeed() // which context serves a peer; it does not matter which

// Ping asks whether a process serves at to's address, and returns how long the answer took. Any answer will do.
func (n *Node) Ping(ctx context.Context, to Peer) (time.Duration, error) {
	switch {
	case to.p == nil:
		return 0, noPeer(hg.PingRPC)
	case to.p.n != n:
		return 0, &hg.Error{Op: "forward", RPC: hg.PingRPC, Peer: to.Addr(), Fate: NotRun, Err: na.WithText(ErrInvalid, "the Peer is of another Node")}
	}
	begun := n.now()
	h, err := n.handle(to.p.i, to.Addr(), hg.HashName(hg.PingRPC))
	if err != nil {
		return 0, err
	}
	_, err = h.CallRaw(ctx, nil)
	n.keep(to.p.i, h)
	if _, answered := hg.RemoteOf(err); answered {
		err = nil
	}
	return n.now() - begun, err
}

func noPeer(method string) error {
	return &hg.Error{Op: "forward", RPC: method, Fate: NotRun, Err: na.WithText(ErrInvalid, "the Peer is zero; Node.Peer makes one")}
}

// Addr returns the address that the next attempt goes to; the zero Addr for the zero Peer.
func (p Peer) Addr() hg.Addr {
	if p.p == nil {
		return hg.Addr{}
	}
	addr, _ := p.p.pick()
	return addr
}

// String returns the addresses, with commas between.
func (p Peer) String() string {
	if p.p == nil {
		return ""
	}
	var all []string
	for _, a := range p.p.addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}

// pick returns the address to try, and its place: the first that has not failed lately, else the one whose failure is oldest.
func (p *peer) pick() (hg.Addr, int) {
	if len(p.addrs) == 1 {
		return p.addrs[0], 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, best := p.n.now(), 0
	for i, until := range p.avoid {
		if until <= now {
			return p.addrs[i], i
		}
		if until < p.avoid[best] {
			best = i
		}
	}
	return p.addrs[best], best
}

// failed has other addresses tried first for a while.
func (p *peer) failed(i int) {
	if len(p.addrs) == 1 {
		return
	}
	p.mu.Lock()
	p.avoid[i] = p.n.now() + avoidTime
	p.mu.Unlock()
}
