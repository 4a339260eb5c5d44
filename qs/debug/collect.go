package debug

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// The bounds of what is counted: peers choose the names of methods that they call, the texts of errors, and how many peers there are.
const (
	keptMethods = 256 // names; the others share one for each kind
	keptErrors  = 256 // groups; the one that came last the longest ago makes room
	keptText    = 300 // bytes of the text of an error
	keptPeers   = 512 // of each of peerShards; the one that was idle the longest makes room
	peerMethods = 16  // of each peer; the one that was called the longest ago makes room
	peerShards  = 16
)

// otherMethods is the name that methods share for which there is no room.
const otherMethods = "(others)"

// A collector counts what has ended. Its methods may be called from any goroutine; none blocks.
//
//	Event ─► counter of its method ─ slots of ten seconds with a histogram
//	     ├─► counter of its peer ─── slots of ten seconds, and its methods
//	     └─► group of errors, if it failed
type collector struct {
	methods atomic.Pointer[map[methodKey]*methodCounter] // replaced when there is a new one: looked up without a lock
	adding  sync.Mutex                                   // held by who replaces methods

	peers [peerShards]peerShard

	mu     sync.Mutex // guards errors
	errors map[errorKey]*errorCounter
}

type methodKey struct {
	kind inspect.EventKind
	name string
}

// A methodCounter counts the calls, or the requests, of a method.
type methodCounter struct {
	key methodKey

	mu     sync.Mutex // guards the fields below
	count  int64
	errors int64
	most   time.Duration
	slots  ring[methodSlot]
	usual  baseline
}

type methodSlot struct {
	tally
	items   int64 // of streams that were under way
	total   time.Duration
	most    time.Duration
	slowest sample     // that took most
	times   *histogram // nil until there is a call
}

// A sample is the call that took the longest.
type sample struct {
	peer  hg.Addr
	trace inspect.TraceID
}

// A tally is what is counted of calls in a slot.
type tally struct {
	count, errors  uint32
	sent, received int64
}

func (t *tally) add(o *tally) {
	t.count += o.count
	t.errors += o.errors
	t.sent += o.sent
	t.received += o.received
}

// tallyOf returns what e adds to a tally.
func tallyOf(e *inspect.Event) tally {
	t := tally{sent: e.Sent, received: e.Received}
	if belongs(e) { // its request is counted
		return t
	}
	t.count = 1
	if e.Code != 0 {
		t.errors = 1
	}
	return t
}

// belongs reports whether e is the end of a transfer of a request: its bytes are those of the method.
func belongs(e *inspect.Event) bool { return e.Kind == inspect.EventTransfer && e.Of != "" }

type peerShard struct {
	mu  sync.Mutex // guards all, and what is in it
	all map[string]*peerCounter
}

// A peerCounter counts the calls to a peer and the requests of it.
type peerCounter struct {
	begun     time.Duration // when it was first seen,
	seen      time.Duration // and last
	served    int64         // requests of it, since begun
	excess    int64         // of served, in slots in which it called far more often than before,
	excessive time.Duration // which are so long
	slots     ring[peerSlot]
	methods   []peerMethod // at most peerMethods
}

// A peerSlot counts what the program has of a peer, and the RPCs of the library beside.
type peerSlot struct {
	own, builtIn tally
	served       uint32 // requests of own
}

// A peerMethod is a method that a peer calls, or that it is called at.
type peerMethod struct {
	m     *methodCounter
	seen  time.Duration
	ended [minuteSlots]uint32 // in the slots of the minute before seen, by their numbers modulo minuteSlots
}

// clear empties the slots after that of seen, up to that of now.
func (pm *peerMethod) clear(now time.Duration) {
	last, n := int64(pm.seen/slotTime), int64(now/slotTime)
	for k := max(last+1, n-int64(minuteSlots)+1); k <= n; k++ {
		pm.ended[k%int64(minuteSlots)] = 0
	}
	pm.seen = max(pm.seen, now)
}

// count counts n that ended at now.
func (pm *peerMethod) count(n uint32, now time.Duration) {
	pm.clear(now)
	pm.ended[int64(pm.seen/slotTime)%int64(minuteSlots)] += n
}

// advance moves the slots to now. Of those that are older than a minute then it notes in which the peer called far more often than before, so that
// what is usual stays what it was; after an hour they are usual.
func (k *peerCounter) advance(now time.Duration) {
	last, n := k.slots.last, int64(now/slotTime)
	if n <= last {
		return
	}
	oldest, before := max(last-int64(minuteSlots)+1, 0), k.served
	for i := oldest; i <= last; i++ {
		before -= int64(k.slots.numbered(i).served)
	}
	for i := oldest; i <= min(last, n-int64(minuteSlots)); i++ {
		slot := Window{Count: int64(k.slots.numbered(i).served), Covers: slotTime}
		usual := Window{Count: before - k.excess, Covers: time.Duration(i)*slotTime - k.begun - k.excessive}
		if slot.Count >= enoughCalls && usual.Covers >= usualLeast && perSecond(slot) >= callsMore*perSecond(usual) {
			k.excess += slot.Count
			k.excessive += slotTime
		}
		before += slot.Count
	}
	if k.excessive > slowForgiven {
		k.excess, k.excessive = 0, 0
	}
	k.slots.at(now)
}

// minute returns how many have ended in the last minute. pm stays as it is: what is seen says which method makes room.
func (pm peerMethod) minute(now time.Duration) (n int) {
	pm.clear(now)
	for _, ended := range pm.ended {
		n += int(ended)
	}
	return n
}

// add adds t, for an event of rpc.
func (s *peerSlot) add(t tally, rpc string) {
	if !inspect.IsBuiltIn(rpc) {
		s.own.add(&t)
		return
	}
	s.builtIn.add(&t)
}

// calls notes that m was called at now, and that n of it ended.
func (k *peerCounter) calls(m *methodCounter, n uint32, now time.Duration) {
	oldest := -1
	for i := range k.methods {
		switch pm := &k.methods[i]; {
		case pm.m == m:
			pm.count(n, now)
			return
		case oldest < 0 || pm.seen < k.methods[oldest].seen:
			oldest = i
		}
	}
	if len(k.methods) < peerMethods {
		oldest = len(k.methods)
		k.methods = append(k.methods, peerMethod{})
	}
	k.methods[oldest] = peerMethod{m: m, seen: now}
	k.methods[oldest].count(n, now)
}

// peerRates returns how many requests of a peer have ended in the last minute, and in the time before, without that in which it
// called far more often than usual.
func (c *collector) peerRates(name string, now time.Duration) (minute, before Window) {
	s := c.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[name]
	if k == nil {
		return minute, before
	}
	k.advance(now)
	for _, slot := range k.slots.newest(now, minuteSlots) {
		minute.Count += int64(slot.served)
	}
	minute.Covers = covered(now, minuteSlots)
	before.Count, before.Covers = k.served-minute.Count-k.excess, max(now-minute.Covers-k.begun-k.excessive, 0)
	minute.PerSecond, before.PerSecond = perSecond(minute), perSecond(before)
	return minute, before
}

// endedWith returns how many of a method, as it is shown, have ended with a peer in the last minute, and whether that is known: the methods of a peer
// may be more than are counted.
func (c *collector) endedWith(name, kind, method string, now time.Duration) (n int, known bool) {
	s := c.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[name]
	if k == nil {
		return 0, len(s.all) < keptPeers
	}
	for i := range k.methods {
		pm := &k.methods[i]
		if kinds[pm.m.key.kind%3] != kind || clean(pm.m.key.name) != method {
			continue
		}
		return pm.minute(now), true
	}
	return 0, len(k.methods) < peerMethods
}

// methodsOf returns how many of each method have ended with a peer in the last minute, by their names, with those of the library if all is set.
func (c *collector) methodsOf(name string, all bool, now time.Duration) (methods []PeerMethod) {
	s := c.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[name]
	if k == nil {
		return nil
	}
	for i := range k.methods {
		if key := k.methods[i].m.key; all || !inspect.IsBuiltIn(key.name) {
			methods = append(methods, PeerMethod{Kind: kinds[key.kind%3], Name: clean(key.name), Minute: k.methods[i].minute(now)})
		}
	}
	slices.SortFunc(methods, func(a, b PeerMethod) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
	})
	return methods
}

type errorKey struct {
	methodKey
	code hg.Code
}

// An errorCounter counts errors of a method with the same code.
type errorCounter struct {
	count       int64
	first, last time.Time
	at          time.Duration // last, by the clock of the page
	event       inspect.Event // the last
}

// observe counts e, which ended at now.
func (c *collector) observe(e *inspect.Event, now time.Duration) {
	key := methodKey{e.Kind, e.RPC}
	if belongs(e) {
		key = methodKey{inspect.EventTarget, e.Of}
	}
	t := tallyOf(e)
	m := c.method(key)
	m.add(e, t, now)
	c.countPeer(e.Peer.Name(), m, t, now)
	if t.errors > 0 {
		c.fail(m.key, e, now)
	}
}

func newMethodCounter(key methodKey) *methodCounter {
	return &methodCounter{key: key, slots: newRing[methodSlot](tenSlots)}
}

// method returns the counter of a method.
func (c *collector) method(key methodKey) *methodCounter {
	if all := c.methods.Load(); all != nil {
		if m := (*all)[key]; m != nil {
			return m
		}
	}
	return c.newMethod(key)
}

func (c *collector) newMethod(key methodKey) *methodCounter {
	c.adding.Lock()
	defer c.adding.Unlock()
	all := map[methodKey]*methodCounter{}
	if was := c.methods.Load(); was != nil {
		all = *was
	}
	if len(all) >= keptMethods {
		key.name = otherMethods
	}
	if m := all[key]; m != nil {
		return m
	}
	key.name = strings.Clone(key.name)
	m := newMethodCounter(key)
	all = maps.Clone(all)
	all[key] = m
	c.methods.Store(&all)
	return m
}

// allMethods returns the counters that there are.
func (c *collector) allMethods() map[methodKey]*methodCounter {
	if all := c.methods.Load(); all != nil {
		return *all
	}
	return nil
}

func (m *methodCounter) add(e *inspect.Event, t tally, now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance(now)
	s := m.slots.at(now)
	s.tally.add(&t)
	if t.count == 0 {
		return
	}
	m.count++
	m.errors += int64(t.errors)
	m.most = max(m.most, e.Took)
	s.total += e.Took
	if s.times == nil {
		s.times = new(histogram)
	}
	s.times[bucketOf(e.Took)]++
	if e.Took > s.most {
		s.most, s.slowest = e.Took, sample{e.Peer, e.Trace}
	}
}

// shard returns where a peer is counted.
func (c *collector) shard(name string) *peerShard {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return &c.peers[h%peerShards]
}

// countPeer counts t, of m, for the peer of that address.
func (c *collector) countPeer(name string, m *methodCounter, t tally, now time.Duration) {
	s := c.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[name]
	if k == nil {
		if s.all == nil {
			s.all = map[string]*peerCounter{}
		}
		if len(s.all) >= keptPeers {
			s.forget()
		}
		k = &peerCounter{begun: now, slots: newRing[peerSlot](minuteSlots)}
		s.all[name] = k
	}
	k.seen = now
	k.advance(now)
	k.slots.at(now).add(t, m.key.name)
	if m.key.kind == inspect.EventTarget && !inspect.IsBuiltIn(m.key.name) {
		k.served += int64(t.count)
		k.slots.at(now).served += t.count
	}
	k.calls(m, t.count, now)
}

// forget makes room for another peer. Locked.
func (s *peerShard) forget() {
	oldest := ""
	for name, k := range s.all {
		if oldest == "" || k.seen < s.all[oldest].seen {
			oldest = name
		}
	}
	delete(s.all, oldest)
}

// peerMinute returns what was counted of a peer in the last minute, with the RPCs of the library if all is set, and whether the method of that name was
// called with it in the last ten.
func (c *collector) peerMinute(name string, all bool, method string, now time.Duration) (t tally, called bool) {
	s := c.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.all[name]
	if k == nil {
		return t, false
	}
	k.advance(now)
	for _, slot := range k.slots.newest(now, minuteSlots) {
		if t.add(&slot.own); all {
			t.add(&slot.builtIn)
		}
	}
	return t, slices.ContainsFunc(k.methods, func(pm peerMethod) bool { return clean(pm.m.key.name) == method && now-pm.seen <= 10*time.Minute })
}

// fail counts the error of e.
func (c *collector) fail(m methodKey, e *inspect.Event, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := errorKey{m, e.Code}
	g := c.errors[key]
	if g == nil {
		if c.errors == nil {
			c.errors = map[errorKey]*errorCounter{}
		}
		if len(c.errors) >= keptErrors {
			c.forgetErrors()
		}
		g = &errorCounter{first: time.Now()}
		c.errors[key] = g
	}
	g.count++
	g.last, g.at, g.event = time.Now(), now, *e
	g.event.Text = strings.Clone(strings.ToValidUTF8(e.Text[:min(len(e.Text), keptText)], ""))
}

// forgetErrors makes room for another group. Locked.
func (c *collector) forgetErrors() {
	var oldest errorKey
	var at *errorCounter
	for key, g := range c.errors {
		if at == nil || g.at < at.at {
			oldest, at = key, g
		}
	}
	delete(c.errors, oldest)
}
