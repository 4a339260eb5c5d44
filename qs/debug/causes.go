package debug

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// leakWindows lists the window sizes, in samples, in which leaks are searched for, largest first.
var leakWindows = []int{tenMinuteSlots, 15, 6}

// causeKinds lists the values of Cause.Kind, worst first. The last one is less certain than the
// others, because it is based on a comparison with earlier times.
var causeKinds = []string{"not ready", "limit", "no room at peer", "peer lost", "stuck stream", "stalled", "leak", "errors", "slow"}

// Thresholds for causes, and limits on their number.
const (
	defaultStalledAfter = 5 * time.Second
	// minCommonSlow is the minimum number of slow methods that are reported as one common cause.
	// They must also be at least half of the methods in use.
	minCommonSlow   = 3
	busyShare       = 0.8  // share of the available CPU time above which the process is considered busy
	failingShare    = 20   // at least one in this many calls must have failed in the last minute
	minFailures     = 10   // minimum number of failed calls in the last minute
	minLeak         = 500  // minimum growth in the number of handles or regions; must also be at least half of that number
	minSteadyLeak   = 100  // minimum growth if it has lasted for leakTime
	minLeakSamples  = 4    // minimum number of samples needed to detect growth
	minFirstLeak    = 2000 // with fewer samples, minimum number of handles or regions that is reported as a leak
	maxMemoryPieces = 1000 // maximum number of memory regions examined per source
	fullShare       = 20   // a budget is considered full if less than one part in this many is left
	maxCauses       = 50   // maximum number of causes on a page
	callsMoreFactor = 3    // factor above which a peer is considered to call more often than before

	leakTime      = 5 * time.Minute  // minimum duration of growth for minSteadyLeak
	causeHoldTime = 10 * time.Second // time for which a cause with a holdKey stays on the page after it was last found
)

// findCauses returns the causes found, in the order of causeKinds. There are at most maxCauses.
func (l *snapshotBuilder) findCauses() []Cause {
	all := []Cause{}
	for _, find := range []func() []Cause{l.findNotReady, l.findLimits, l.findNoRoom, l.findLostPeers, l.findStuckStreams, l.findStalled, l.findLeaks, l.findFailing, l.findSlower} {
		all = append(all, find()...)
	}
	all = l.p.addRecent(all, l.now)
	return all[:min(len(all), maxCauses)]
}

// rankOf returns the index of kind in causeKinds.
func rankOf(kind string) int { return slices.Index(causeKinds, kind) }

// A recentCause is a cause that stays on the page until causeHoldTime after it was last found.
type recentCause struct {
	Cause
	at time.Duration // time at which it was last found, on the page's clock
}

// addRecent records the causes in all, which were found at the time now, and returns them together
// with the recorded causes that were last found within causeHoldTime before now. Only causes with a
// holdKey are recorded. The result is in the order of causeKinds.
func (p *Page) addRecent(all []Cause, now time.Duration) []Cause {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range all {
		if c.holdKey == "" {
			continue
		}
		if p.recentCauses == nil {
			p.recentCauses = map[string]recentCause{}
		}
		p.recentCauses[c.holdKey] = recentCause{c, now}
	}
	for _, key := range slices.Sorted(maps.Keys(p.recentCauses)) {
		c := p.recentCauses[key]
		switch ago := now - c.at; {
		case ago >= causeHoldTime:
			delete(p.recentCauses, key)
		case !slices.ContainsFunc(all, func(o Cause) bool { return o.holdKey == key }):
			c.Text += fmt.Sprintf(" Last seen %s ago.", durationText(max(ago.Round(time.Second), time.Second)))
			all = append(all, c.Cause)
		}
	}
	slices.SortStableFunc(all, func(a, b Cause) int { return cmp.Compare(rankOf(a.Kind), rankOf(b.Kind)) })
	return all
}

// stalledAfter returns Page.StalledAfter, or its default.
func (l *snapshotBuilder) stalledAfter() time.Duration {
	if l.p.StalledAfter > 0 {
		return l.p.StalledAfter
	}
	return defaultStalledAfter
}

func (l *snapshotBuilder) findNotReady() (all []Cause) {
	for _, s := range l.sources {
		switch {
		case !s.isOpen():
			all = append(all, Cause{Kind: "not ready", Text: "The node is closed."})
		case !s.isReady():
			all = append(all, Cause{Kind: "not ready", Text: "The node is not ready: SetReady(false) was called, or it is shutting down and refuses new calls."})
		}
	}
	return all
}

// A limitUse describes the use of a limit on concurrent handlers.
type limitUse struct {
	active, max int
	waiting     int
	methods     map[string]int // number of running requests by method; nil if no request is waiting
}

// usedShare returns the fraction of the limit that is in use, or 0 if there is no limit.
func (r limitUse) usedShare() float64 {
	if r.max == 0 {
		return 0
	}
	return float64(r.active) / float64(r.max)
}

// describe returns a text that states the number of running requests, the limit, and what it
// applies to. The number may be below the limit even if requests are waiting, because a request may
// have completed before the next one begins.
func (r limitUse) describe(of string) string {
	if r.active >= r.max {
		return fmt.Sprintf("%s, the limit %s", countNoun(r.active, "request is running", "requests are running"), of)
	}
	return fmt.Sprintf("the limit %s is %d, of which %d are running at this moment", of, r.max, r.active)
}

// addRunning counts a running request of method if other requests are waiting for the limit. r may
// be nil.
func (r *limitUse) addRunning(method string) {
	if r == nil || r.waiting == 0 {
		return
	}
	if r.methods == nil {
		r.methods = map[string]int{}
	}
	r.methods[method]++
}

// mostFrequent returns the method with the most running requests and a text that states their
// number.
func (r *limitUse) mostFrequent() (method, text string) {
	for m, n := range r.methods {
		if most := r.methods[method]; n > most || n == most && m < method {
			method = m
		}
	}
	if method == "" {
		return "", ""
	}
	return method, fmt.Sprintf("; %d of them %s for %s", r.methods[method], verbForm(r.methods[method], "is", "are"), method)
}

// findLimits returns a cause for each limit that requests are waiting for. A request may be limited
// by its method, its peer and its context. It is assumed to wait for the limit with the largest
// used share or, among equal shares, for the narrowest limit.
func (l *snapshotBuilder) findLimits() (all []Cause) {
	methods, peers := map[string]*limitUse{}, map[session]*limitUse{}
	contexts := make([]limitUse, len(l.contexts))
	for i := range l.contexts {
		contexts[i] = limitUse{active: int(l.contexts[i].Active), max: l.contexts[i].MaxActive}
	}
	for i := range l.methods {
		m := &l.methods[i]
		if w := l.methodWork[methodKey{inspect.EventTarget, m.Name}]; m.Kind == kindWords[inspect.EventTarget] && w != nil && m.Limit > 0 {
			methods[m.Name] = &limitUse{active: w.active, max: m.Limit}
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		at := session{p.Context, p.addr}
		if w := l.peerWork[at]; w != nil && w.waiting > 0 {
			peers[at] = &limitUse{active: w.active, max: l.contexts[p.Context].MaxActivePerPeer}
		}
	}
	for i := range l.calls {
		c := &l.calls[i]
		if c.Kind != kindWords[inspect.EventTarget] || c.State != "waiting" {
			continue
		}
		limit := &contexts[c.Context]
		for _, r := range []*limitUse{peers[c.session], methods[c.Method]} {
			if r != nil && r.max > 0 && r.usedShare() >= limit.usedShare() {
				limit = r
			}
		}
		limit.waiting++
	}
	for i := range l.calls {
		if c := &l.calls[i]; c.Kind == kindWords[inspect.EventTarget] && isActiveState(c.State) {
			peers[c.session].addRunning(c.Method)
			contexts[c.Context].addRunning(c.Method)
		}
	}
	for i := range l.methods {
		m := &l.methods[i]
		if r := methods[m.Name]; r != nil && r.waiting > 0 && m.Kind == kindWords[inspect.EventTarget] {
			all = append(all, Cause{holdKey: "limit of method " + m.Name, Kind: "limit", Method: m.Name, Count: r.waiting, Text: fmt.Sprintf(
				"%s of %s %s for a handler to finish: %s. Find out why the handler is slow, or raise the limit.",
				countNoun(r.waiting, "request", "requests"), m.Name, verbForm(r.waiting, "waits", "wait"), r.describe("of this method (qs.MaxConcurrent)"))})
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		if r := peers[session{p.Context, p.addr}]; r != nil && r.waiting > 0 {
			method, most := r.mostFrequent()
			all = append(all, Cause{holdKey: "limit of peer " + p.Address, Kind: "limit", Method: method, Peer: p.Address, Count: r.waiting, Text: fmt.Sprintf(
				"%s of %s %s for earlier ones of this peer to finish: %s%s. The limit prevents one peer from delaying the requests of others. %s",
				countNoun(r.waiting, "request", "requests"), p.Label, verbForm(r.waiting, "waits", "wait"), r.describe("for one peer (HG.MaxActivePerPeer)"), most, l.adviseForPeer(p))})
		}
	}
	for i := range l.contexts {
		c, r := &l.contexts[i], contexts[i]
		if r.waiting > 0 {
			method, most := r.mostFrequent()
			all = append(all, Cause{holdKey: fmt.Sprint("limit of context ", i), Kind: "limit", Method: method, Count: r.waiting, Text: fmt.Sprintf(
				"%s for a handler to finish: %s%s. Find out whether handlers are slow or wait for each other. If not, raise the limit or add servers.",
				countNoun(r.waiting, "request waits", "requests wait"), r.describe("(HG.MaxActive)"), most)})
		}
		if c.Budget > 0 && c.Reserved > c.Budget-c.Budget/fullShare {
			all = append(all, Cause{Kind: "limit", Text: fmt.Sprintf(
				"The memory guaranteed to peers is exhausted: %s of %s for %s (qs.Config.MaxPeers). Idle peers are disconnected to make room. If none is idle, new peers cannot connect: raise the limit, or reduce the number of clients.",
				bytesText(c.Reserved), bytesText(c.Budget), countNoun(c.Peers, "peer", "peers"))})
		}
	}
	return append(all, l.findWithoutWorker()...)
}

// adviseForPeer returns a text that advises what to do about a peer that has reached its limit.
func (l *snapshotBuilder) adviseForPeer(p *Peer) string {
	minute, before := l.p.collector.requestRates(p.addr.Name(), l.now)
	if minute.Count >= minCalls && before.Covers >= minBaseline && minute.PerSecond >= callsMoreFactor*before.PerSecond {
		return fmt.Sprintf("It calls far more often than before: %.3g times per second in the last minute, and %.3g in the %s before. Find the reason at the peer, and reduce its rate: "+
			"with a higher limit, the requests of other peers would wait for it.", minute.PerSecond, before.PerSecond, durationText(before.Covers))
	}
	return "Reduce the number of concurrent calls of the peer. Raise the limit only if the peer needs them and the resources that the handlers use have spare capacity."
}

// findWithoutWorker returns a cause if requests that no limit holds back are waiting for a worker.
func (l *snapshotBuilder) findWithoutWorker() []Cause {
	n, oldest := 0, time.Duration(0)
	for i := range l.calls {
		if c := &l.calls[i]; c.State == "given" && c.Kind == kindWords[inspect.EventTarget] && c.Age >= l.stalledAfter() {
			n++
			oldest = max(oldest, c.Age)
		}
	}
	if n == 0 {
		return nil
	}
	return []Cause{{Kind: "limit", Count: n, Text: fmt.Sprintf(
		"%s for a worker, the oldest for %s: all workers are busy (qs.Config.MaxConcurrent), or no goroutine drives the node. Check that Serve is running, then find the slow handlers or raise the limit.", countNoun(n, "request waits", "requests wait"), durationText(oldest))}}
}

// findNoRoom returns a cause for each peer with no free envelope for the messages waiting to be sent
// to it, if a call to the peer has been in flight for stalledAfter.
func (l *snapshotBuilder) findNoRoom() (all []Cause) {
	for i := range l.peers {
		p := &l.peers[i]
		if p.Waiting == 0 || p.Free > 0 {
			continue
		}
		oldest := time.Duration(0)
		for _, addr := range []session{{p.Context, p.addr}, {p.Context, p.addr.Named()}} {
			if w := l.peerWork[addr]; w != nil {
				oldest = max(oldest, w.oldest)
			}
		}
		if oldest < l.stalledAfter() {
			continue
		}
		all = append(all, Cause{Kind: "no room at peer", Peer: p.Address, Count: p.Waiting, Text: fmt.Sprintf(
			"%s accepts no messages: all %d envelopes that it guarantees are in use, and %s here for one. The oldest call to it has been in flight for %s. Either no goroutine drives the peer's node (Serve), or all of its handlers are busy: see the peer's own debug page.",
			p.Label, p.Promised, countNoun(p.Waiting, "message waits", "messages wait"), durationText(oldest))})
	}
	return all
}

// A groupKey holds the properties that all calls of a callGroup share.
type groupKey struct{ kind, method, state string }

// A callGroup is a group of calls that are reported as a single cause.
type callGroup struct {
	key    groupKey
	count  int
	oldest *Call
	peers  map[peerKey]hg.Addr // peers of all calls in the group
}

// otherSide returns a text that names the peer of the group's calls or, if there are several,
// states their number.
func (g *callGroup) otherSide() string {
	if len(g.peers) == 1 {
		return g.preposition() + " " + g.oldest.Peer
	}
	return fmt.Sprintf("%s %d peers", g.preposition(), len(g.peers))
}

// preposition returns the preposition that precedes the peer in a text about the group's calls.
func (g *callGroup) preposition() string {
	if g.key.kind == kindWords[inspect.EventTarget] {
		return "from"
	}
	return "to"
}

// groupCalls groups the calls for which pick returns true. The groups are in the order of their
// oldest calls.
func groupCalls(calls []Call, pick func(c *Call) bool) (all []*callGroup) {
	of := map[groupKey]*callGroup{}
	for i := range calls {
		c := &calls[i]
		if !pick(c) {
			continue
		}
		key := groupKey{c.Kind, c.Method, c.Means}
		g := of[key]
		if g == nil {
			g = &callGroup{key: key, oldest: c, peers: map[peerKey]hg.Addr{}}
			of[key] = g
			all = append(all, g)
		}
		g.count++
		g.peers[peerKey{c.Context, c.Address}] = c.session.peer
		if c.Age > g.oldest.Age {
			g.oldest = c
		}
	}
	slices.SortStableFunc(all, func(a, b *callGroup) int { return cmp.Compare(b.oldest.Age, a.oldest.Age) })
	return all
}

func (l *snapshotBuilder) findStuckStreams() (all []Cause) {
	stuck := func(c *Call) bool { return c.streamOrZero().Stuck >= l.stalledAfter() }
	for _, g := range groupCalls(l.streams, stuck) {
		c, others := g.oldest, -g.count
		for i := range l.streams {
			o := &l.streams[i]
			if o.Kind != c.Kind || o.Method != c.Method {
				continue
			}
			if others++; o.Stream.Stuck > c.Stream.Stuck { // the one stuck longest
				c = o
			}
		}
		text := fmt.Sprintf("%s of %s %s stalled: ", countNoun(g.count, "stream", "streams"), c.Method, verbForm(g.count, "is", "are"))
		waits := fmt.Sprintf("for %s, although %s are buffered.", durationText(c.Stream.Stuck), bytesText(c.Stream.Waiting))
		if c.Kind == kindWords[inspect.EventOrigin] {
			text += fmt.Sprintf("this process has read nothing from %s %s Find out what the loop that receives the items waits for.", c.Peer, waits)
		} else {
			caller := "the caller, " + c.Peer
			if len(g.peers) > 1 {
				caller = fmt.Sprintf("the callers are %d peers, the first of which, %s", len(g.peers), c.Peer)
			}
			text += fmt.Sprintf("%s, has read nothing %s The handler is blocked in send. Find out what the caller's receive loop waits for.", caller, waits)
		}
		if others > 0 {
			text += fmt.Sprintf(" %s of %s %s progress.", countNoun(others, "other stream", "other streams"), c.Method, verbForm(others, "makes", "make"))
		}
		all = append(all, Cause{Kind: "stuck stream", Method: c.Method, Peer: c.Address, Count: g.count, Text: text})
	}
	return all
}

// findStalled returns a cause for each group of calls that have been in flight for too long.
func (l *snapshotBuilder) findStalled() (all []Cause) {
	late := func(c *Call) bool {
		// Requests in these states are reported by findLimits.
		held := c.Kind == kindWords[inspect.EventTarget] && (c.State == "waiting" || c.State == "given")
		w := l.usualOf(c)
		return c.Age >= l.stalledAfter() && !held && !inspect.IsBuiltIn(c.Method) && (w.Count < minCalls || c.Age > medianFactor*w.P99)
	}
	for _, g := range groupCalls(l.calls, late) {
		c := g.oldest
		oldest := "the oldest"
		if len(g.peers) > 1 {
			oldest = fmt.Sprintf("the oldest, with %s,", c.Peer)
		}
		text := fmt.Sprintf("%s of %s %s %s for more than %s, %s for %s: %s.",
			countNoun(g.count, c.Kind, c.Kind+"s"), c.Method, g.otherSide(), verbForm(g.count, "has been in flight", "have been in flight"),
			durationText(l.stalledAfter()), oldest, durationText(c.Age), c.Means)
		text += l.countEnded(g)
		if c.Size > 0 {
			text += fmt.Sprintf(" %s of the %s that it lends have been transferred, including data read ahead.", bytesText(c.Moved), bytesText(c.Size))
		}
		if w := l.usualOf(c); w.Count >= minCalls {
			text += fmt.Sprintf(" Normally, 99 %% complete within %s.", durationText(w.P99))
		}
		if c.State == "running" && c.Kind == kindWords[inspect.EventTarget] {
			if g.count > 1 {
				text += " They may all wait for the same resource, such as a lock."
			}
			text += " Take a goroutine profile of this process to see where the handler is blocked."
		}
		all = append(all, Cause{Kind: "stalled", Method: c.Method, Peer: c.Address, Count: g.count, Text: text})
	}
	return all
}

// countEnded returns a text that states how many calls of g's method completed in the last minute
// with the peers of g, and how many with others. The numbers show whether all calls of the method
// hang or only those with some peers.
func (l *snapshotBuilder) countEnded(g *callGroup) string {
	i := slices.IndexFunc(l.methods, func(m Method) bool { return m.Kind == g.key.kind && m.Name == g.key.method })
	if i < 0 || !l.p.isObserving.Load() {
		return ""
	}
	all := int(l.methods[i].Minute.Count)
	if all == 0 {
		return fmt.Sprintf(" No %s of %s has completed in the last minute.", g.key.kind, g.key.method)
	}
	own, counted := 0, map[string]bool{}
	for _, addr := range g.peers {
		name := addr.Name()
		if counted[name] { // same peer, in another context
			continue
		}
		counted[name] = true
		n, known := l.p.collector.countEnded(name, g.key.kind, g.key.method, l.now)
		if !known {
			return fmt.Sprintf(" In the last minute, %s of %s completed.", countNoun(all, g.key.kind, g.key.kind+"s"), g.key.method)
		}
		own += n
	}
	with := "these peers"
	if len(g.peers) == 1 {
		with = g.oldest.Peer
	}
	others := max(all-own, 0)
	text := fmt.Sprintf(" In the last minute, %s of %s completed: %s %s %s, %s %s others.",
		countNoun(all, g.key.kind, g.key.kind+"s"), g.key.method, noneOr(own), g.preposition(), with, noneOr(others), g.preposition())
	if own == 0 && others >= minCalls {
		text += fmt.Sprintf(" So only the %ss %s %s are affected, not the whole method.", g.key.kind, g.preposition(), with)
	}
	return text
}

// noneOr formats n in decimal, or as "none" if it is 0.
func noneOr(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// findLeaks returns a cause if the number of open handles, or of registered memory regions, keeps
// growing.
func (l *snapshotBuilder) findLeaks() (all []Cause) {
	first, past := l.p.sampleHistory(l.now)
	now := l.p.newSample(l.now)
	for _, kind := range []struct {
		name, text string
		value      func(processSample) int64
		owner      func(c *Cause) // names the likely owner in c
	}{
		{
			"handles", "Close each handle that Create of package hg returns. With hg.Config.Trace, the error of Shutdown reports where the open ones were created.",
			func(s processSample) int64 { return s.handles }, l.nameHandleOwner,
		},
		{
			"registered regions of memory", "Close each handle of package bulk, and check whether this process waits for a peer that no longer reports that it is done.",
			func(s processSample) int64 { return s.regions }, l.nameMemoryUser,
		},
	} {
		g := trendOf(first, past, now, kind.value)
		if !g.leaks {
			continue
		}
		c := Cause{Kind: "leak", Count: int(g.have), Text: fmt.Sprintf("%d %s are unused but not closed", g.have, kind.name)}
		if g.perSecond > 0 {
			c.Text += fmt.Sprintf(", and their number has grown by %.3g per second in the last %s", g.perSecond, durationText(g.over))
		} else {
			c.Text += ", and there are no earlier samples: this entry disappears within a minute unless their number grows"
		}
		kind.owner(&c)
		c.Text += ". " + kind.text
		all = append(all, c)
	}
	return all
}

// nameHandleOwner names in c the method and the peer for which most of the unused handles were
// created.
func (l *snapshotBuilder) nameHandleOwner(c *Cause) {
	type owner struct{ method, peer string }
	of, method, peer, n := map[owner]int64{}, "", hg.Addr{}, int64(0)
	for _, s := range l.sources {
		s.countUnused(func(m string, p hg.Addr) {
			key := owner{m, p.Name()}
			if of[key]++; of[key] > n {
				method, peer, n = m, p, of[key]
			}
		})
	}
	if n > 0 {
		c.Method, c.Peer = printableText(method), printableText(peer.Name())
		c.Text += fmt.Sprintf("; %d of them were created for %s to %s", n, c.Method, l.labelOf(peer))
	}
}

// nameMemoryUser states in c the size of the registered memory, and the peer that was the last to
// access most of the regions, if any.
func (l *snapshotBuilder) nameMemoryUser(c *Cause) {
	of, looked, bytes := map[memoryUse]int{}, 0, int64(0)
	var most memoryUse
	for _, s := range l.sources {
		for _, m := range s.listMemory(maxMemoryPieces) {
			looked++
			bytes += m.size
			if of[m]++; of[m] > of[most] {
				most = m
			}
		}
	}
	if looked == 0 {
		return
	}
	user := "no peer has used them"
	if most.user != 0 {
		user = "the session of the peer that used them has ended"
		if i := slices.IndexFunc(l.peers, func(p Peer) bool { return p.addr.Session() == most.user }); i >= 0 {
			user, c.Peer = l.peers[i].Label+" used them last", l.peers[i].Address
		}
	}
	about, which := "", fmt.Sprintf("all %d", looked)
	if c.Count > looked {
		about, which = "about ", fmt.Sprintf("all of the %d examined", looked)
		bytes = int64(float64(bytes) / float64(looked) * float64(c.Count))
	}
	if of[most] < looked {
		which = fmt.Sprintf("%d of the %d examined", of[most], looked)
	}
	c.Text += fmt.Sprintf(". Their total size is %s%s; %s are alike: %s each, for peers to %s, and %s", about, bytesText(bytes), which, bytesText(most.size), most.access, user)
}

// A trend describes the growth of a value.
type trend struct {
	have      int64
	perSecond float64       // growth per second
	over      time.Duration // duration of the growth, or 0 if not known
	leaks     bool
}

// trendOf returns the growth of value over the longest of leakWindows in which value leaks. With
// too few samples to determine growth, a large value is considered a leak by itself.
func trendOf(first processSample, past []processSample, now processSample, value func(processSample) int64) trend {
	have := value(now)
	if n := len(past); n >= minLeakSamples {
		for _, samples := range leakWindows {
			from := max(n-samples, 0)
			if from > 0 && have <= value(slices.MaxFunc(past[:from], func(a, b processSample) int { return cmp.Compare(value(a), value(b)) })) {
				continue // the value was already this large before the window
			}
			if g := trendIn(past[from:], value); g.leaks {
				g.have = have
				return g
			}
		}
		return trend{}
	}
	since := now.at - first.at
	if since < minLeakSamples*slotTime {
		return trend{have: have, leaks: have >= minFirstLeak}
	}
	grew := have - value(first)
	return trend{have, float64(grew) / since.Seconds(), since, grew >= minFirstLeak}
}

// trendIn returns the growth of value, computed from the minimum of each third of the samples. The
// value leaks if these minima increase steadily, by minLeak in total or by minSteadyLeak over
// leakTime. A value that fluctuates, or that has increased only once, does not leak.
func trendIn(samples []processSample, value func(processSample) int64) trend {
	n := len(samples)
	third := func(i int) (least int64) {
		part := samples[i*n/3 : (i+1)*n/3]
		least = value(part[0])
		for _, s := range part {
			least = min(least, value(s))
		}
		return least
	}
	a, b, c := third(0), third(1), third(2)
	grew, over := c-a, samples[n-1].at-samples[0].at
	steady := 8*(b-a) >= grew && 8*(c-b) >= grew
	enough := grew >= minLeak && grew*2 >= a || grew >= minSteadyLeak && over >= leakTime
	return trend{0, float64(grew) / max(samples[2*n/3].at-samples[0].at, slotTime).Seconds(), over, steady && enough}
}

// A slowMethod is a method that is slower than usual, and how much slower it is.
type slowMethod struct {
	*Method
	slowness
}

// findSlower returns the causes for methods that took longer than usual in the last minute, in
// order of decreasing factors. If most methods are slower, they share a common cause, and only
// methods whose slowness it does not explain have a cause of their own. A common cause for slow
// 99th percentiles never includes a method with a slow median.
func (l *snapshotBuilder) findSlower() (all []Cause) {
	// Common causes for slow 99th percentiles. They come last, because they are less significant
	// than even a single slow median.
	var moments []Cause
	common := slowness{tail: l.commonTail()}
	for _, kind := range []inspect.EventKind{inspect.EventTarget, inspect.EventOrigin} {
		var slow []slowMethod
		judged := 0
		for i := range l.methods {
			m := &l.methods[i]
			if m.Kind != kindWords[kind] || !m.isJudged() {
				continue
			}
			judged++
			if s, is := compareToUsual(m.Minute, m.usual); is {
				slow = append(slow, slowMethod{m, s})
			}
		}
		slices.SortStableFunc(slow, func(a, b slowMethod) int { return b.compareSeverity(a) })
		n := slices.IndexFunc(slow, func(m slowMethod) bool { return !m.isMedianSlow() })
		if n < 0 {
			n = len(slow)
		}
		halves, tails := slow[:n], slow[n:]
		most := func(some []slowMethod) bool { return len(some) >= minCommonSlow && 2*len(some) >= judged }
		switch {
		case most(halves):
			all = append(all, l.newCommonSlowness(kind, slow, judged))
			common.median.raiseTo(medianOf(halves, func(m slowMethod) change { return m.median }))
			common.tail.raiseTo(medianOf(slow, func(m slowMethod) change { return m.tail }))
		case most(slow) && len(tails) >= minCommonSlow:
			moments = append(moments, l.newCommonSlowness(kind, tails, judged))
			common.tail.raiseTo(medianOf(tails, func(m slowMethod) change { return m.tail }))
		}
		for _, m := range slow {
			if !m.isExplainedBy(common) {
				all = append(all, l.newSlowMethod(m, common))
			}
		}
	}
	return append(all, moments...)
}

// compareSeverity compares m and o by the factors of their medians or, if neither median is slow,
// by those of their 99th percentiles. A method with a slow median is more severe than one without.
func (m slowMethod) compareSeverity(o slowMethod) int {
	switch {
	case m.isMedianSlow() && o.isMedianSlow():
		return cmp.Compare(m.median.factor, o.median.factor)
	case m.isMedianSlow():
		return 1
	case o.isMedianSlow():
		return -1
	}
	return cmp.Compare(m.tail.factor, o.tail.factor)
}

// isJudged reports whether m has enough calls to be compared, both in the last minute and in its
// baseline.
func (m *Method) isJudged() bool {
	return !inspect.IsBuiltIn(m.Name) && m.Minute.Count >= minCalls && m.usual.isBaseline()
}

// commonTail returns the median of the changes in the 99th percentiles of methods that are not
// slow. It is used to discount growth that affects all methods, as on a machine that is busy at
// times. If there are fewer than minCommonSlow such methods, commonTail returns the zero change.
func (l *snapshotBuilder) commonTail() change {
	var calm []slowMethod
	for i := range l.methods {
		m := &l.methods[i]
		if !m.isJudged() {
			continue
		}
		if s, slow := compareToUsual(m.Minute, m.usual); !slow {
			calm = append(calm, slowMethod{m, s})
		}
	}
	if len(calm) < minCommonSlow {
		return change{}
	}
	return medianOf(calm, func(m slowMethod) change { return m.tail })
}

// medianOf calls of for each element of some. It returns the median of the factors and the median of
// the added times.
func medianOf(some []slowMethod, of func(m slowMethod) change) change {
	var times []float64
	var more []time.Duration
	for _, m := range some {
		times, more = append(times, of(m).factor), append(more, of(m).added)
	}
	slices.Sort(times)
	slices.Sort(more)
	return change{factor: times[len(times)/2], added: more[len(more)/2]}
}

// newCommonSlowness returns the common cause for methods that became slow at the same time, either
// in their medians or only in their 99th percentiles. slow is sorted by decreasing severity. judged
// is the number of methods compared.
func (l *snapshotBuilder) newCommonSlowness(kind inspect.EventKind, slow []slowMethod, judged int) Cause {
	worst := slow[0]
	what, lead := "requests", "Most methods are slower than usual: the process or the machine is busy."
	elsewhere := "Check what else runs on this machine, and what the handlers wait for."
	if kind == inspect.EventOrigin {
		what, lead = "calls", "Most calls are slower than usual: the peers, the network, this process or its machine are busy."
		elsewhere = "Check the debug pages of the peers, and what else runs on this machine."
	}
	most := fmt.Sprintf("most of all %s, whose median time is %.3g times the usual one", worst.Name, worst.median.factor)
	if !worst.isMedianSlow() {
		lead = fmt.Sprintf("The slowest %s of many methods take longer than usual, while their medians have hardly changed: something is busy at times.", what)
		most = fmt.Sprintf("most of all %s, whose 99th percentile is %.3g times the usual one", worst.Name, worst.tail.factor)
	}
	if l.isBusy() {
		elsewhere = "The process is short of CPU time: take a CPU profile of it."
	}
	return Cause{holdKey: "slow " + what, Kind: "slow", Count: len(slow), Text: fmt.Sprintf(
		"%s This affects the %s of %d of %d methods, %s. This process has used %s, and has %d goroutines and %s of memory. %s",
		lead, what, len(slow), judged, most, l.usage.processorsText(), l.usage.Goroutines, bytesText(l.usage.Memory), elsewhere)}
}

// newSlowMethod returns the cause for m, whose slowness common does not fully explain.
func (l *snapshotBuilder) newSlowMethod(m slowMethod, common slowness) Cause {
	now, usual := m.Minute, m.usual
	text := fmt.Sprintf("the 99th percentile was %s in the last minute, and %s", durationText(now.P99), durationText(usual.P99))
	if m.isMedianSlow() && !(m.isTailSlow() && m.median.isExplainedBy(common.median)) {
		text = fmt.Sprintf("the median was %s in the last minute, and %s", durationText(now.P50), durationText(usual.P50))
	}
	since := ""
	if ago := l.now - m.slowSince; m.slowSince > 0 && ago >= time.Minute {
		since = " for " + durationText(ago)
	}
	text = fmt.Sprintf("%ss of %s are slower than usual%s: %s in the %s before. The rate was %.3g per second, and %.3g before.",
		strings.ToUpper(m.Kind[:1])+m.Kind[1:], m.Name, since, text, durationText(usual.Covers), now.PerSecond, usual.PerSecond)
	if m.Kind == kindWords[inspect.EventTarget] {
		text += l.explainSlow(m.Name)
	}
	return Cause{holdKey: "slow " + m.Kind + " of " + m.Name, Kind: "slow", Method: m.Name, Text: text}
}

// explainSlow returns a text that states whether the slow requests of a method wait for other
// requests, for a processor, or for something else, and which profile would show the reason.
func (l *snapshotBuilder) explainSlow(method string) string {
	w := l.methodWork[methodKey{inspect.EventTarget, method}]
	switch {
	case w != nil && w.waiting > 0:
		return fmt.Sprintf(" %d of them %s for others to finish, which adds to the time: see the limit that has been reached.", w.waiting, verbForm(w.waiting, "is waiting", "are waiting"))
	case l.usage.CPU == 0: // unknown CPU usage
		return ""
	case l.isBusy():
		return fmt.Sprintf(" This process has used %s, so its handlers may be short of CPU time: take a CPU profile of it.", l.usage.processorsText())
	}
	return fmt.Sprintf(" This process has used %s, so its handlers are waiting: take a goroutine profile to see for what, unless other processes occupy the processors.", l.usage.processorsText())
}

// findFailing returns a cause for each method that had at least minFailures failed calls in the
// last minute, if they are at least one in failingShare of all its calls.
func (l *snapshotBuilder) findFailing() (all []Cause) {
	for i := range l.methods {
		m := &l.methods[i]
		w := m.Minute
		if inspect.IsBuiltIn(m.Name) || w.Errors < minFailures || w.Errors*failingShare < w.Count {
			continue
		}
		text := fmt.Sprintf("%d of %d %ss of %s failed in the last minute", w.Errors, w.Count, m.Kind, m.Name)
		for j := range l.errors { // sorted by decreasing frequency
			if e := &l.errors[j]; e.Kind == m.Kind && e.Method == m.Name && e.sinceLast <= coveredTime(l.now, minuteSlots) {
				text += ", most of them with " + strings.TrimSuffix(e.Error, ".")
				if e.Text != "" && e.Text != e.Error {
					text += fmt.Sprintf("; the last error text was %q", e.Text)
				}
				break
			}
		}
		all = append(all, Cause{Kind: "errors", Method: m.Name, Count: int(w.Errors), Text: text + "."})
	}
	return all
}

// verbForm returns one if n is 1, and many otherwise. They are forms of the same verb.
func verbForm(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// countNoun returns n followed by the noun one if n is 1, and by the noun many otherwise.
func countNoun(n int, one, many string) string {
	return fmt.Sprintf("%d %s", n, verbForm(n, one, many))
}
