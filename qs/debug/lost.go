package debug

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

const (
	lostShown   = 5 * time.Minute  // for how long a lost peer is a cause
	lostAtOnce  = 10 * time.Second // in which what ends belongs to one loss
	keptLost    = 64               // peers; the one that was lost the longest ago makes room
	lostMethods = 5                // that are named of each
	lostEach    = 5                // peers that are told one by one
)

// lostPeers keeps which peers were lost, and what was under way with them. Its methods may be called from any goroutine; none blocks.
//
//	OnFault of a context ─────────────────► peer, error
//	Event of a call or a request, peer lost ► peer, and one of what was under way
//	any Event of a request of that session ─► one of what was under way
type lostPeers struct {
	some atomic.Bool

	mu  sync.Mutex // guards all
	all map[string]*lostPeer
}

// A lostPeer is a peer whose session was lost.
type lostPeer struct {
	peer            hg.Addr       // of the session if that is known
	at              time.Duration // by the clock of the page
	why             string
	calls, requests int // that were under way and have ended since
	methods         []string
}

// entry returns what is kept of the loss of peer, which is now, or was a moment ago. Locked.
func (l *lostPeers) entry(peer hg.Addr, now time.Duration) *lostPeer {
	name := peer.Name()
	if p := l.all[name]; p != nil && now-p.at < lostAtOnce && (p.peer.Session() == 0 || peer.Session() == 0 || p.peer.Session() == peer.Session()) {
		if peer.Session() != 0 {
			p.peer = peer
		}
		return p
	}
	if l.all == nil {
		l.all = map[string]*lostPeer{}
	}
	if len(l.all) >= keptLost && l.all[name] == nil {
		oldest := ""
		for other, p := range l.all {
			if oldest == "" || p.at < l.all[oldest].at {
				oldest = other
			}
		}
		delete(l.all, oldest)
	}
	p := &lostPeer{peer: peer, at: now}
	l.all[name] = p
	l.some.Store(true)
	return p
}

// lost notes that the session with peer was lost.
func (l *lostPeers) lost(peer hg.Addr, why error, now time.Duration) {
	if peer.IsZero() { // of more than can be told
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entry(peer, now).why = clean(why.Error())
}

// observe counts e if it is the end of a call or a request that was under way with a peer that was lost. connected reports whether a session is up: a
// handler may fail since another peer was lost.
func (l *lostPeers) observe(e *inspect.Event, now time.Duration, connected func(peer hg.Addr) bool) {
	request, lost := e.Kind == inspect.EventTarget, e.Code == hg.ErrPeerLost && !e.Remote
	if lost && request {
		lost = !connected(e.Peer)
	}
	if !lost && !(request && l.some.Load()) || e.Kind == inspect.EventTransfer || inspect.IsBuiltIn(e.RPC) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.all[e.Peer.Name()]
	if lost {
		p = l.entry(e.Peer, now)
		if p.why == "" {
			p.why = clean(cmp.Or(e.Text, e.Code.Error()))
		}
	}
	switch {
	case !request:
		p.calls++
	case p != nil && p.peer.Session() == e.Peer.Session():
		p.requests++
	default: // of a process that has taken its place
		return
	}
	if name := clean(e.RPC); len(p.methods) < lostMethods && !slices.Contains(p.methods, name) {
		p.methods = append(p.methods, name)
	}
}

// recent returns those that were lost in the last minutes, the newest first, and forgets the others.
func (l *lostPeers) recent(now time.Duration) (all []lostPeer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.all {
		if now-p.at > lostShown {
			delete(l.all, name)
			continue
		}
		p := *p
		p.methods = slices.Clone(p.methods)
		all = append(all, p)
	}
	l.some.Store(len(l.all) > 0)
	slices.SortFunc(all, func(a, b lostPeer) int {
		return cmp.Or(cmp.Compare(b.at, a.at), strings.Compare(a.peer.Name(), b.peer.Name()))
	})
	return all
}

// lostPeers tells of peers that were lost while something was under way with them.
func (l *look) lostPeers() (all []Cause) {
	more, last := 0, lostPeer{}
	for _, p := range l.p.lost.recent(l.now) {
		n := p.calls + p.requests
		if n == 0 && l.p.observed.Load() {
			continue // nobody waits for it
		}
		if len(all) == lostEach {
			if more++; more == 1 {
				last = p
			}
			continue
		}
		text := fmt.Sprintf("%s was lost %s ago: %s.", l.label(p.peer), took(l.now-p.at), strings.TrimSuffix(p.why, "."))
		if n > 0 {
			text += fmt.Sprintf(" %s to it and %s of it had not ended (%s).", plural(p.calls, "call", "calls"), plural(p.requests, "request", "requests"), strings.Join(p.methods, ", "))
		}
		text += " A process that dies or is stopped, and a network that is interrupted, show like this: a peer that is silent for na.Config.PeerTimeout (5 s) counts as lost."
		c := Cause{Kind: "peer lost", Peer: clean(p.peer.Name()), Count: n}
		if _, up := l.labels[p.peer.Name()]; up {
			text += " It is connected again."
		}
		if len(p.methods) == 1 {
			c.Method = p.methods[0]
		}
		c.Text = text
		all = append(all, c)
	}
	if more > 0 {
		all = append(all, Cause{Kind: "peer lost", Count: more, Text: fmt.Sprintf("%s more %s lost in the last %s, the last of them %s ago.",
			plural(more, "peer", "peers"), verb(more, "was", "were"), took(lostShown), took(l.now-last.at))})
	}
	return all
}
