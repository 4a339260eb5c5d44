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

// Limits of the collector. They bound the memory used for data that peers control: method names,
// error messages, and the number of peers.
const (
	maxMethods        = 256 // maximum number of methods; further ones share one counter for each kind
	maxErrors         = 256 // maximum number of error groups; when it is reached, the least recent one is evicted
	maxTextBytes      = 300 // maximum length of an error message in bytes
	maxPeersPerShard  = 512 // maximum number of peers in a shard; when it is reached, the least recently used one is evicted
	maxMethodsPerPeer = 16  // maximum number of methods of a peer; when it is reached, the least recently used one is evicted
	peerShards        = 16
)

// otherMethods is the name under which methods beyond maxMethods are counted.
const otherMethods = "(others)"

// A collector counts completed calls, requests and transfers. It counts each event for its method
// and for its peer, in slots of ten seconds, and adds failures to a group of errors. Its methods
// are safe for concurrent use and do not block.
type collector struct {
	// methods is replaced, rather than modified, when a method is added, so that readers need no
	// lock.
	methods atomic.Pointer[map[methodKey]*methodCounter]
	addMu   sync.Mutex // held while replacing methods

	peers [peerShards]peerShard

	mu     sync.Mutex // guards errors
	errors map[errorKey]*errorCounter
}

type methodKey struct {
	kind inspect.EventKind
	name string
}

// A methodCounter counts the calls or the requests of a method.
type methodCounter struct {
	key methodKey

	mu       sync.Mutex // guards the fields below
	count    int64
	errors   int64
	longest  time.Duration
	slots    slotRing[methodSlot]
	baseline baseline
}

type methodSlot struct {
	tally
	items   int64 // number of items transferred in streams
	total   time.Duration
	longest time.Duration
	slowest slowestCall // the call with duration longest
	times   *histogram  // nil if there are no calls
}

// A slowestCall identifies the slowest call of a slot.
type slowestCall struct {
	peer  hg.Addr
	trace inspect.TraceID
}

// A tally holds the counts of a number of calls.
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

// tallyOf returns the counts that e contributes.
func tallyOf(e *inspect.Event) tally {
	t := tally{sent: e.Sent, received: e.Received}
	if isPartOfRequest(e) { // only the request is counted as a call
		return t
	}
	t.count = 1
	if e.Code != 0 {
		t.errors = 1
	}
	return t
}

// isPartOfRequest reports whether e is the completion of a transfer that is part of a request. The
// bytes of such a transfer are counted for the request's method.
func isPartOfRequest(e *inspect.Event) bool { return e.Kind == inspect.EventTransfer && e.Of != "" }

type peerShard struct {
	mu    sync.Mutex // guards peers and its elements
	peers map[string]*peerCounter
}

// A peerCounter counts the calls to and requests from a peer.
type peerCounter struct {
	firstSeen      time.Duration // time of the first event of the peer, on the page's clock
	lastSeen       time.Duration // time of the last event of the peer
	served         int64         // requests from the peer since firstSeen
	excessRequests int64         // requests, included in served, in slots with far more requests than before
	excessTime     time.Duration // total length of those slots
	slots          slotRing[peerSlot]
	methods        []peerMethod // at most maxMethodsPerPeer
}

// A peerSlot counts the calls with a peer in one slot, separately for the program's methods and the
// library's own.
type peerSlot struct {
	program, builtIn tally
	served           uint32 // number of requests from the peer for the program's methods
}

// A peerMethod counts the calls of a method to or from a peer.
type peerMethod struct {
	counter  *methodCounter
	lastSeen time.Duration
	// ended holds the number of calls completed in each slot of the minute up to lastSeen, indexed
	// by slot number modulo minuteSlots.
	ended [minuteSlots]uint32
}

// clearPassed advances lastSeen to now, clearing the slots that have begun since.
func (pm *peerMethod) clearPassed(now time.Duration) {
	last, n := int64(pm.lastSeen/slotTime), int64(now/slotTime)
	for k := max(last+1, n-int64(minuteSlots)+1); k <= n; k++ {
		pm.ended[k%int64(minuteSlots)] = 0
	}
	pm.lastSeen = max(pm.lastSeen, now)
}

// addCount counts n calls that completed at the time now.
func (pm *peerMethod) addCount(n uint32, now time.Duration) {
	pm.clearPassed(now)
	pm.ended[int64(pm.lastSeen/slotTime)%int64(minuteSlots)] += n
}

// advance begins the slot for the time now. Among the slots that are then older than a minute,
// those in which the peer called far more often than before are counted as excess. Once an hour of
// slots has been counted as excess, their rate becomes the usual one.
func (k *peerCounter) advance(now time.Duration) {
	last, n := k.slots.last, int64(now/slotTime)
	if n <= last {
		return
	}
	oldest, before := max(last-int64(minuteSlots)+1, 0), k.served
	for i := oldest; i <= last; i++ {
		before -= int64(k.slots.slotNumber(i).served)
	}
	for i := oldest; i <= min(last, n-int64(minuteSlots)); i++ {
		slot := Window{Count: int64(k.slots.slotNumber(i).served), Covers: slotTime}
		usual := Window{Count: before - k.excessRequests, Covers: time.Duration(i)*slotTime - k.firstSeen - k.excessTime}
		if slot.Count >= minCalls && usual.Covers >= minBaseline && perSecond(slot) >= callsMoreFactor*perSecond(usual) {
			k.excessRequests += slot.Count
			k.excessTime += slotTime
		}
		before += slot.Count
	}
	if k.excessTime > maxSlowTime {
		k.excessRequests, k.excessTime = 0, 0
	}
	k.slots.slotAt(now)
}

// countMinute returns the number of calls completed in the minute before now. The receiver is a
// copy, because clearPassed changes lastSeen, which determines the method to evict.
func (pm peerMethod) countMinute(now time.Duration) (n int) {
	pm.clearPassed(now)
	for _, ended := range pm.ended {
		n += int(ended)
	}
	return n
}

// add adds the counts t of an event of method rpc.
func (s *peerSlot) add(t tally, rpc string) {
	if !inspect.IsBuiltIn(rpc) {
		s.program.add(&t)
		return
	}
	s.builtIn.add(&t)
}

// countMethod counts n calls of m that completed at the time now. The lock of k's shard must be
// held.
func (k *peerCounter) countMethod(m *methodCounter, n uint32, now time.Duration) {
	oldest := -1
	for i := range k.methods {
		switch pm := &k.methods[i]; {
		case pm.counter == m:
			pm.addCount(n, now)
			return
		case oldest < 0 || pm.lastSeen < k.methods[oldest].lastSeen:
			oldest = i
		}
	}
	if len(k.methods) < maxMethodsPerPeer {
		oldest = len(k.methods)
		k.methods = append(k.methods, peerMethod{})
	}
	k.methods[oldest] = peerMethod{counter: m, lastSeen: now}
	k.methods[oldest].addCount(n, now)
}

// requestRates returns the rates of requests from the named peer, in the last minute and before it.
// The latter excludes slots in which the peer called far more often than usual.
func (c *collector) requestRates(name string, now time.Duration) (minute, before Window) {
	s := c.shardOf(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.peers[name]
	if k == nil {
		return minute, before
	}
	k.advance(now)
	for _, slot := range k.slots.newestSlots(now, minuteSlots) {
		minute.Count += int64(slot.served)
	}
	minute.Covers = coveredTime(now, minuteSlots)
	before.Count, before.Covers = k.served-minute.Count-k.excessRequests, max(now-minute.Covers-k.firstSeen-k.excessTime, 0)
	minute.PerSecond, before.PerSecond = perSecond(minute), perSecond(before)
	return minute, before
}

// countEnded returns the number of calls of a method with the named peer that completed in the last
// minute. kind and method are as displayed on the page. known is false if the count may be
// incomplete because the method or the peer has been evicted.
func (c *collector) countEnded(name, kind, method string, now time.Duration) (n int, known bool) {
	s := c.shardOf(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.peers[name]
	if k == nil {
		return 0, len(s.peers) < maxPeersPerShard
	}
	for i := range k.methods {
		pm := &k.methods[i]
		if kindWords[pm.counter.key.kind%3] != kind || printableText(pm.counter.key.name) != method {
			continue
		}
		return pm.countMinute(now), true
	}
	return 0, len(k.methods) < maxMethodsPerPeer
}

// methodsOfPeer returns the methods called with the named peer, sorted by name, each with the
// number of calls completed in the last minute. If all is false, the library's own methods are
// omitted.
func (c *collector) methodsOfPeer(name string, all bool, now time.Duration) (methods []PeerMethod) {
	s := c.shardOf(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.peers[name]
	if k == nil {
		return nil
	}
	for i := range k.methods {
		if key := k.methods[i].counter.key; all || !inspect.IsBuiltIn(key.name) {
			methods = append(methods, PeerMethod{Kind: kindWords[key.kind%3], Name: printableText(key.name), Minute: k.methods[i].countMinute(now)})
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

// An errorCounter counts the errors of a method with the same code.
type errorCounter struct {
	count       int64
	first, last time.Time
	lastAt      time.Duration // time of the last error, on the page's clock
	lastEvent   inspect.Event // the last error
}

// countEvent counts e, which completed at the time now, for its method, its peer and its error.
func (c *collector) countEvent(e *inspect.Event, now time.Duration) {
	key := methodKey{e.Kind, e.RPC}
	if isPartOfRequest(e) {
		key = methodKey{inspect.EventTarget, e.Of}
	}
	t := tallyOf(e)
	m := c.methodCounter(key)
	m.addEvent(e, t, now)
	c.countPeer(e.Peer.Name(), m, t, now)
	if t.errors > 0 {
		c.countError(m.key, e, now)
	}
}

func newMethodCounter(key methodKey) *methodCounter {
	return &methodCounter{key: key, slots: newRing[methodSlot](tenMinuteSlots)}
}

// methodCounter returns the counter for key, adding one if necessary.
func (c *collector) methodCounter(key methodKey) *methodCounter {
	if all := c.methods.Load(); all != nil {
		if m := (*all)[key]; m != nil {
			return m
		}
	}
	return c.addMethod(key)
}

func (c *collector) addMethod(key methodKey) *methodCounter {
	c.addMu.Lock()
	defer c.addMu.Unlock()
	all := map[methodKey]*methodCounter{}
	if was := c.methods.Load(); was != nil {
		all = *was
	}
	if len(all) >= maxMethods {
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

// allMethods returns the current map of counters. The caller must not modify it.
func (c *collector) allMethods() map[methodKey]*methodCounter {
	if all := c.methods.Load(); all != nil {
		return *all
	}
	return nil
}

func (m *methodCounter) addEvent(e *inspect.Event, t tally, now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advanceLocked(now)
	s := m.slots.slotAt(now)
	s.tally.add(&t)
	if t.count == 0 {
		return
	}
	m.count++
	m.errors += int64(t.errors)
	m.longest = max(m.longest, e.Took)
	s.total += e.Took
	if s.times == nil {
		s.times = new(histogram)
	}
	s.times[bucketOf(e.Took)]++
	if e.Took > s.longest {
		s.longest, s.slowest = e.Took, slowestCall{e.Peer, e.Trace}
	}
}

// shardOf returns the shard for the peer with the given address.
func (c *collector) shardOf(name string) *peerShard {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return &c.peers[h%peerShards]
}

// countPeer adds the counts t of an event of m to the counter of the peer with the given address.
func (c *collector) countPeer(name string, m *methodCounter, t tally, now time.Duration) {
	s := c.shardOf(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.peers[name]
	if k == nil {
		if s.peers == nil {
			s.peers = map[string]*peerCounter{}
		}
		if len(s.peers) >= maxPeersPerShard {
			s.evictOldestLocked()
		}
		k = &peerCounter{firstSeen: now, slots: newRing[peerSlot](minuteSlots)}
		s.peers[name] = k
	}
	k.lastSeen = now
	k.advance(now)
	k.slots.slotAt(now).add(t, m.key.name)
	if m.key.kind == inspect.EventTarget && !inspect.IsBuiltIn(m.key.name) {
		k.served += int64(t.count)
		k.slots.slotAt(now).served += t.count
	}
	k.countMethod(m, t.count, now)
}

// evictOldestLocked removes the least recently used peer from s. The caller must hold s.mu.
func (s *peerShard) evictOldestLocked() {
	oldest := ""
	for name, k := range s.peers {
		if oldest == "" || k.lastSeen < s.peers[oldest].lastSeen {
			oldest = name
		}
	}
	delete(s.peers, oldest)
}

// countPeerMinute returns the counts of the named peer for the last minute, and reports whether
// method was called with it in the last ten minutes. If all is false, the library's own RPCs are
// not counted.
func (c *collector) countPeerMinute(name string, all bool, method string, now time.Duration) (t tally, called bool) {
	s := c.shardOf(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.peers[name]
	if k == nil {
		return t, false
	}
	k.advance(now)
	for _, slot := range k.slots.newestSlots(now, minuteSlots) {
		if t.add(&slot.program); all {
			t.add(&slot.builtIn)
		}
	}
	return t, slices.ContainsFunc(k.methods, func(pm peerMethod) bool {
		return printableText(pm.counter.key.name) == method && now-pm.lastSeen <= 10*time.Minute
	})
}

// countError adds the error that e reports to the group with its method and code.
func (c *collector) countError(m methodKey, e *inspect.Event, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := errorKey{m, e.Code}
	g := c.errors[key]
	if g == nil {
		if c.errors == nil {
			c.errors = map[errorKey]*errorCounter{}
		}
		if len(c.errors) >= maxErrors {
			c.evictErrorLocked()
		}
		g = &errorCounter{first: time.Now()}
		c.errors[key] = g
	}
	g.count++
	g.last, g.lastAt, g.lastEvent = time.Now(), now, *e
	g.lastEvent.Text = strings.Clone(strings.ToValidUTF8(e.Text[:min(len(e.Text), maxTextBytes)], ""))
}

// evictErrorLocked removes the error group whose last error is oldest. The caller must hold c.mu.
func (c *collector) evictErrorLocked() {
	var oldest errorKey
	var at *errorCounter
	for key, g := range c.errors {
		if at == nil || g.lastAt < at.lastAt {
			oldest, at = key, g
		}
	}
	delete(c.errors, oldest)
}
