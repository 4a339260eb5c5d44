package hg

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

const (
	// watchDuration is how long a context counts events after the last request from a tool.
	watchDuration = 15 * time.Second
	// watchedCalls, watchedMethods, and watchedPeers limit the number of entries in the response,
	// which peers could otherwise increase at will.
	watchedCalls   = 1000
	watchedMethods = 256
	watchedPeers   = 1024
	// others is the name under which methods and peers beyond these limits are counted.
	others = "(others)"
)

// An activityWatch counts the completed calls, requests, and transfers of a context while a tool is
// watching. A request from a tool starts the counting, and the first event that arrives more than
// watchDuration after the last request stops it. At other times nothing is counted, and calls do
// not read the clock for it.
type activityWatch struct {
	on atomic.Bool

	mu      sync.Mutex // guards the fields below
	began   time.Duration
	asked   time.Duration
	methods map[watchedMethod]*inspect.MethodCount
	peers   map[string]*inspect.PeerCount
}

type watchedMethod struct {
	kind inspect.EventKind
	name string
}

// startCounting starts counting, or extends it if it has already started, and adds the current
// counts to a.
func (w *activityWatch) startCounting(now time.Duration, a *inspect.Activity) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.on.Load() || now-w.asked > watchDuration {
		w.began = now
		w.methods, w.peers = map[watchedMethod]*inspect.MethodCount{}, map[string]*inspect.PeerCount{}
		w.on.Store(true)
	}
	w.asked = now
	a.Watched = now - w.began
	for _, m := range w.methods {
		c := *m
		c.Times = map[int]int64{}
		for bucket, n := range m.Times {
			c.Times[bucket] = n
		}
		a.Methods = append(a.Methods, c)
	}
	for _, p := range w.peers {
		a.Traffic = append(a.Traffic, *p)
	}
}

// countEvent counts the event e. If watchDuration has passed since the last request from a tool, it
// stops counting instead.
func (w *activityWatch) countEvent(now time.Duration, e *inspect.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now-w.asked > watchDuration {
		w.on.Store(false)
		w.methods, w.peers = nil, nil
		return
	}
	m := w.methodLocked(watchedMethod{e.Kind, e.RPC})
	m.Count++
	m.Sent += e.Sent
	m.Received += e.Received
	m.Total += e.Took
	m.Times[inspect.TimeBucket(e.Took)]++
	p := w.peerLocked(e.Peer.Named().String())
	p.Sent += e.Sent
	p.Received += e.Received
	if e.Kind != inspect.EventTransfer {
		p.Count++
	}
	if e.Code != 0 {
		m.Errors++
		p.Errors++
	}
}

func (w *activityWatch) methodLocked(key watchedMethod) *inspect.MethodCount {
	m := w.methods[key]
	if m == nil && len(w.methods) >= watchedMethods {
		key.name = others
		m = w.methods[key]
	}
	if m == nil {
		m = &inspect.MethodCount{Kind: key.kind, RPC: key.name, Times: map[int]int64{}}
		w.methods[key] = m
	}
	return m
}

func (w *activityWatch) peerLocked(address string) *inspect.PeerCount {
	p := w.peers[address]
	if p == nil && len(w.peers) >= watchedPeers {
		address = others
		p = w.peers[address]
	}
	if p == nil {
		p = &inspect.PeerCount{Address: address}
		w.peers[address] = p
	}
	return p
}

// activity returns the activity of every context, as sent to a tool that is watching.
func (c *Class) activity() []inspect.Activity {
	gauges := c.Gauges()
	all := make([]inspect.Activity, len(gauges))
	for i, hctx := range c.Contexts() {
		if i == len(gauges) { // created since Gauges
			break
		}
		a := &all[i]
		a.Gauges = gauges[i]
		calls := hctx.Calls()
		a.More = max(len(calls)-watchedCalls, 0)
		for _, call := range calls[:len(calls)-a.More] {
			s := inspect.CallState{
				Kind: call.Kind, RPC: call.RPC, Peer: call.Peer.Label(), ID: call.ID, State: call.State, Age: call.Age, Moved: call.Moved, Size: call.Size,
			}
			if flow := call.Flow; flow != nil {
				s.Items, s.Moved, s.In = flow.Items, flow.Bytes, flow.In
			}
			a.Calls = append(a.Calls, s)
		}
		hctx.watch.startCounting(hctx.Now(), a)
	}
	return all
}
