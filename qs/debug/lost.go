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
	lostCauseTime  = 5 * time.Minute  // time for which a lost peer is listed as a cause
	sameLossTime   = 10 * time.Second // losses of a peer within this time count as one
	maxLostPeers   = 64               // maximum number of peers recorded; when it is reached, the peer lost least recently is evicted
	maxLostMethods = 5                // maximum number of methods recorded per peer
	maxLostCauses  = 5                // maximum number of peers with their own cause; the others share one
)

// lostPeers records the peers whose sessions were lost, and counts the calls and requests that were
// in flight on those sessions. Its methods are safe for concurrent use and do not block.
//
// A loss is recorded when a context reports it through OnFault, or when a call or request fails
// with ErrPeerLost. A request from a lost session is counted whatever its result is.
type lostPeers struct {
	hasAny atomic.Bool

	mu    sync.Mutex // guards peers and its elements
	peers map[string]*lostPeer
}

// A lostPeer describes a peer whose session was lost.
type lostPeer struct {
	peer            hg.Addr       // address, bound to the lost session if that is known
	lostAt          time.Duration // time of the loss, on the page's clock
	why             string
	calls, requests int // number in flight at the time of the loss that have completed since
	methods         []string
}

// entryLocked returns the entry for the loss of peer at the time now. It returns an existing entry
// if that entry belongs to the same session and is less than sameLossTime old, and otherwise adds a
// new one. The caller must hold l.mu.
func (l *lostPeers) entryLocked(peer hg.Addr, now time.Duration) *lostPeer {
	name := peer.Name()
	if p := l.peers[name]; p != nil && now-p.lostAt < sameLossTime && (p.peer.Session() == 0 || peer.Session() == 0 || p.peer.Session() == peer.Session()) {
		if peer.Session() != 0 {
			p.peer = peer
		}
		return p
	}
	if l.peers == nil {
		l.peers = map[string]*lostPeer{}
	}
	if len(l.peers) >= maxLostPeers && l.peers[name] == nil {
		oldest := ""
		for other, p := range l.peers {
			if oldest == "" || p.lostAt < l.peers[oldest].lostAt {
				oldest = other
			}
		}
		delete(l.peers, oldest)
	}
	p := &lostPeer{peer: peer, lostAt: now}
	l.peers[name] = p
	l.hasAny.Store(true)
	return p
}

// addLoss records that the session with peer was lost at the time now because of the error why. It
// ignores the zero Addr.
func (l *lostPeers) addLoss(peer hg.Addr, why error, now time.Duration) {
	if peer.IsZero() { // OnFault reports further losses without an address if many peers are lost at once
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entryLocked(peer, now).why = printableText(why.Error())
}

// countEvent counts e if it reports the completion of a call or request that was in flight when its
// peer was lost. connected reports whether the session with a peer is up. countEvent calls it for
// requests, because a handler may fail with ErrPeerLost due to the loss of a different peer.
func (l *lostPeers) countEvent(e *inspect.Event, now time.Duration, connected func(peer hg.Addr) bool) {
	request, lost := e.Kind == inspect.EventTarget, e.Code == hg.ErrPeerLost && !e.Remote
	if lost && request {
		lost = !connected(e.Peer)
	}
	if !lost && !(request && l.hasAny.Load()) || e.Kind == inspect.EventTransfer || inspect.IsBuiltIn(e.RPC) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[e.Peer.Name()]
	if lost {
		p = l.entryLocked(e.Peer, now)
		if p.why == "" {
			p.why = printableText(cmp.Or(e.Text, e.Code.Error()))
		}
	}
	switch {
	case !request:
		p.calls++
	case p != nil && p.peer.Session() == e.Peer.Session():
		p.requests++
	default: // the request came from a later process at the same address
		return
	}
	if name := printableText(e.RPC); len(p.methods) < maxLostMethods && !slices.Contains(p.methods, name) {
		p.methods = append(p.methods, name)
	}
}

// takeRecent returns the peers lost within lostCauseTime before now, most recent first. It deletes
// the entries of all other peers.
func (l *lostPeers) takeRecent(now time.Duration) (all []lostPeer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, p := range l.peers {
		if now-p.lostAt > lostCauseTime {
			delete(l.peers, name)
			continue
		}
		p := *p
		p.methods = slices.Clone(p.methods)
		all = append(all, p)
	}
	l.hasAny.Store(len(l.peers) > 0)
	slices.SortFunc(all, func(a, b lostPeer) int {
		return cmp.Or(cmp.Compare(b.lostAt, a.lostAt), strings.Compare(a.peer.Name(), b.peer.Name()))
	})
	return all
}

// findLostPeers returns a cause for each lost peer that had calls or requests in flight.
func (l *snapshotBuilder) findLostPeers() (all []Cause) {
	more, last := 0, lostPeer{}
	for _, p := range l.p.lost.takeRecent(l.now) {
		n := p.calls + p.requests
		if n == 0 && l.p.isObserving.Load() {
			continue // no call or request was in flight
		}
		if len(all) == maxLostCauses {
			if more++; more == 1 {
				last = p
			}
			continue
		}
		text := fmt.Sprintf("%s was lost %s ago: %s.", l.labelOf(p.peer), durationText(l.now-p.lostAt), strings.TrimSuffix(p.why, "."))
		if n > 0 {
			text += fmt.Sprintf(" %s to it and %s from it were in flight (%s).", countNoun(p.calls, "call", "calls"), countNoun(p.requests, "request", "requests"), strings.Join(p.methods, ", "))
		}
		text += " Its process has exited or was stopped, or the network was interrupted: a peer that is silent for na.Config.PeerTimeout (5 s) counts as lost."
		c := Cause{Kind: "peer lost", Peer: printableText(p.peer.Name()), Count: n}
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
			countNoun(more, "peer", "peers"), verbForm(more, "was", "were"), durationText(lostCauseTime), durationText(l.now-last.lostAt))})
	}
	return all
}
