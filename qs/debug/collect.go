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

// The limits of the collector. They are needed because peers choose the names of the methods that
// they call, the texts of errors, and the number of peers.
const (
	maxMethods        = 256 // names; the others share one for each kind
	maxErrors         = 256 // groups; the least recent one is evicted
	maxTextBytes      = 300 // bytes of the text of an error
	maxPeersPerShard  = 512 // in each of peerShards; the one that was idle the longest makes room
	maxMethodsPerPeer = 16  // of each peer; the one that was called the longest ago makes room
	peerShards        = 16
)

// otherMethods is the name of all methods beyond maxMethods.
const otherMethods = "(others)"

// A collector counts calls, requests and transfers that have ended. Its methods may be called from
// any goroutine; none blocks.
//
//	Event ─► counter of its method ─ slots of ten seconds with a histogram
//	     ├─► counter of its peer ─── slots of ten seconds, and its methods
//	     └─► group of errors, if it failed
type collector struct {
	// replaced when there is a new one: looked up without a lock
	methods atomic.Pointer[map[methodKey]*methodCounter]
	addMu   sync.Mutex // held while methods is replaced

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

	mu       sync.Mutex // guards the fields below
	count    int64
	errors   int64
	longest  time.Duration
	slots    slotRing[methodSlot]
	baseline baseline
}

type methodSlot struct {
	tally
	items   int64 // items of streams that were under way
	total   time.Duration
	longest time.Duration
	slowest slowestCall // the call that took longest
	times   *histogram  // nil until there is a call
}

// A slowestCall is the call of a slot that took the longest.
type slowestCall struct {
	peer  hg.Addr
	trace inspect.TraceID
}

// A tally counts the calls of a slot.
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

// tallyOf returns the counts that e adds to a tally.
func tallyOf(e *inspect.Event) tally {
	t := tally{sent: e.Sent, received: e.Received}
	if isPartOfRequest(e) { // its request is counted
		return t
	}
	t.count = 1
	if e.Code != 0 {
		t.errors = 1
	}
	return t
}

// isPartOfRequest reports whether e is the end of a transfer of a request: its bytes are those of
// the method.
func isPartOfRequest(e *inspect.Event) bool { return e.Kind == inspect.EventTransfer && e.Of != "" }

type peerShard struct {
	mu    sync.Mutex // guards peers and the counters in it
	peers map[string]*peerCounter
}

// A peerCounter counts the calls to a peer and its requests.
type peerCounter struct {
	firstSeen      time.Duration // the first event of the peer, by the clock of the page
	lastSeen       time.Duration // the last event of the peer
	served         int64         // its requests since firstSeen
	excessRequests int64         // those of served in slots in which it called far more often than before
	excessTime     time.Duration // the length of these slots
	slots          slotRing[peerSlot]
	methods        []peerMethod // at most peerMethods
}

// A peerSlot counts the calls of a peer in a slot, those of RPCs of the library by themselves.
type peerSlot struct {
	program, builtIn tally
	served           uint32 // requests of the peer, of methods of this program
}

// A peerMethod is a method that a peer calls, or that it is called at.
type peerMethod struct {
	counter  *methodCounter
	lastSeen time.Duration
	// calls that ended in the minute up to lastSeen, by the number of their slot modulo minuteSlots
	ended [minuteSlots]uint32
}

// clearPassed empties the slots after that of lastSeen, up to that of now.
func (pm *peerMethod) clearPassed(now time.Duration) {
	last, n := int64(pm.lastSeen/slotTime), int64(now/slotTime)
	for k := max(last+1, n-int64(minuteSlots)+1); k <= n; k++ {
		pm.ended[k%int64(minuteSlots)] = 0
	}
	pm.lastSeen = max(pm.lastSeen, now)
}

// addCount counts n that ended at now.
func (pm *peerMethod) addCount(n uint32, now time.Duration) {
	pm.clearPassed(now)
	pm.ended[int64(pm.lastSeen/slotTime)%int64(minuteSlots)] += n
}

// advance moves the slots to now. Slots that are older than a minute then, and in which the peer
// called far more often than before, count as excess and not as usual, until they are an hour.
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

// countMinute returns how many have ended in the last minute. It changes a copy of pm, because
// lastSeen decides which method makes room.
func (pm peerMethod) countMinute(now time.Duration) (n int) {
	pm.clearPassed(now)
	for _, ended := range pm.ended {
		n += int(ended)
	}
	return n
}

// add adds t, for an event of rpc.
func (s *peerSlot) add(t tally, rpc string) {
	if !inspect.IsBuiltIn(rpc) {
		s.program.add(&t)
		return
	}
	s.builtIn.add(&t)
}

// countMethod counts n calls of m that ended at now.
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

// requestRates returns how many requests of a peer have ended in the last minute, and in the time
// before, without that in which it called far more often than usual.
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

// countEnded returns how many of a method, as it is shown, have ended with a peer in the last
// minute, and whether that is known: the methods of a peer may be more than are counted.
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

// methodsOfPeer returns how many of each method have ended with a peer in the last minute, by their
// names, with those of the library if all is set.
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

// An errorCounter counts errors of a method with the same code.
type errorCounter struct {
	count       int64
	first, last time.Time
	lastAt      time.Duration // when the last one ended, by the clock of the page
	lastEvent   inspect.Event // the last one
}

// countEvent counts e, which ended at now.
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

// methodCounter returns the counter of a method.
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

// allMethods returns the counters of all methods.
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

// shardOf returns the shard of a peer.
func (c *collector) shardOf(name string) *peerShard {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return &c.peers[h%peerShards]
}

// countPeer counts t, of m, for the peer of that address.
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

// evictOldestLocked makes room for another peer.
func (s *peerShard) evictOldestLocked() {
	oldest := ""
	for name, k := range s.peers {
		if oldest == "" || k.lastSeen < s.peers[oldest].lastSeen {
			oldest = name
		}
	}
	delete(s.peers, oldest)
}

// countPeerMinute returns the counts of a peer in the last minute, with the RPCs of the library if
// all is set, and whether the method of that name was called with it in the last ten minutes.
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

// countError counts the error of e.
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

// evictErrorLocked makes room for another group.
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
