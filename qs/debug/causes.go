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

// leakWindows are in how many of the newest samples a leak is looked for.
var leakWindows = []int{tenSlots, 15, 6}

// causeKinds are those of Cause.Kind, the worst first, and last the one that is a guess, from how times have changed.
var causeKinds = []string{"not ready", "limit", "no room at peer", "peer lost", "stuck stream", "stalled", "leak", "errors", "slow"}

// What counts as a cause.
const (
	defaultStalled = 5 * time.Second
	allSlower      = 3    // methods that are slower, and half of those that are called, are told as one
	busyShare      = 0.8  // of its processors, from which on the process counts as busy
	failingShare   = 20   // one of so many calls of the last minute
	failingLeast   = 10   // calls that failed in it
	leakLeast      = 500  // by how much handles or regions grow, and by half,
	leakSteadily   = 100  // or steadily,
	leakSamples    = 4    // slots in which they were counted
	leakMany       = 2000 // how many are told of a page that was not there before
	leakLooks      = 1000 // pieces of registered memory that are looked at
	fullShare      = 20   // less than one part of so many of the budget is left
	mostCauses     = 50   // that are told
	callsMore      = 3    // times as often as before a peer calls that is told to call less

	leakTime   = 5 * time.Minute  // in which something grows steadily
	causeStays = 10 * time.Second // for which a cause that comes and goes is told after it was found
)

// causes says what is wrong now, in the order of causeKinds.
func (l *look) causes() []Cause {
	all := []Cause{}
	for _, find := range []func() []Cause{l.notReady, l.limits, l.noRoom, l.lostPeers, l.stuckStreams, l.stalled, l.leaks, l.failing, l.slower} {
		all = append(all, find()...)
	}
	all = l.p.withRecent(all, l.now)
	return all[:min(len(all), mostCauses)]
}

// rank returns the place of a kind: what is certain before what is a guess, and then what holds up the most.
func rank(kind string) int { return slices.Index(causeKinds, kind) }

// A recentCause is a cause that stays for a moment when it is no longer found.
type recentCause struct {
	Cause
	at time.Duration // when it was found, by the clock of the page
}

// withRecent adds to all causes that were found now those that were found a moment ago, and that come and go by their nature.
func (p *Page) withRecent(all []Cause, now time.Duration) []Cause {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range all {
		if c.stays == "" {
			continue
		}
		if p.recent == nil {
			p.recent = map[string]recentCause{}
		}
		p.recent[c.stays] = recentCause{c, now}
	}
	for _, key := range slices.Sorted(maps.Keys(p.recent)) {
		c := p.recent[key]
		switch ago := now - c.at; {
		case ago >= causeStays:
			delete(p.recent, key)
		case !slices.ContainsFunc(all, func(o Cause) bool { return o.stays == key }):
			c.Text += fmt.Sprintf(" This was so %s ago.", took(max(ago.Round(time.Second), time.Second)))
			all = append(all, c.Cause)
		}
	}
	slices.SortStableFunc(all, func(a, b Cause) int { return cmp.Compare(rank(a.Kind), rank(b.Kind)) })
	return all
}

// stalledAfter is Page.StalledAfter with its default.
func (l *look) stalledAfter() time.Duration {
	if l.p.StalledAfter > 0 {
		return l.p.StalledAfter
	}
	return defaultStalled
}

func (l *look) notReady() (all []Cause) {
	for _, s := range l.sources {
		switch {
		case !s.open():
			all = append(all, Cause{Kind: "not ready", Text: "The node is closed."})
		case !s.ready():
			all = append(all, Cause{Kind: "not ready", Text: "The node is not ready: SetReady(false) was called, or it is shutting down and refuses new calls."})
		}
	}
	return all
}

// A reached is how near to being reached a limit is that requests wait for.
type reached struct {
	active, most int
	waiting      int
	methods      map[string]int // of those that run; nil if nothing waits
}

// share returns how much of a limit is used, 0 of none.
func (r reached) share() float64 {
	if r.most == 0 {
		return 0
	}
	return float64(r.active) / float64(r.most)
}

// inWords says how many run, what the limit is, and what it is for. Those that have ended a moment ago leave a place that the next has not taken yet.
func (r reached) inWords(of string) string {
	if r.active >= r.most {
		return fmt.Sprintf("%d run, which is the limit %s", r.active, of)
	}
	return fmt.Sprintf("%d is the limit %s, and it was reached when they came; %d run at this moment, since others have just ended and the next have not begun", r.most, of, r.active)
}

// counts counts a request that runs, if others wait for the limit.
func (r *reached) counts(method string) {
	if r == nil || r.waiting == 0 {
		return
	}
	if r.methods == nil {
		r.methods = map[string]int{}
	}
	r.methods[method]++
}

// mostOf returns the method that most of those that run are of, and says so.
func (r *reached) mostOf() (method, text string) {
	for m, n := range r.methods {
		if most := r.methods[method]; n > most || n == most && m < method {
			method = m
		}
	}
	if method == "" {
		return "", ""
	}
	return method, fmt.Sprintf("; of those that run %d are of %s", r.methods[method], method)
}

// limits finds what requests wait for: each for that limit of its method, of its peer and of its context of which the most is used, of several for
// the narrowest.
func (l *look) limits() (all []Cause) {
	methods, peers := map[string]*reached{}, map[session]*reached{}
	contexts := make([]reached, len(l.contexts))
	for i := range l.contexts {
		contexts[i] = reached{active: int(l.contexts[i].Active), most: l.contexts[i].MaxActive}
	}
	for i := range l.methods {
		m := &l.methods[i]
		if w := l.running[methodKey{inspect.EventTarget, m.Name}]; m.Kind == kinds[inspect.EventTarget] && w != nil && m.Limit > 0 {
			methods[m.Name] = &reached{active: w.active, most: m.Limit}
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		at := session{p.Context, p.addr}
		if w := l.work[at]; w != nil && w.waiting > 0 {
			peers[at] = &reached{active: w.active, most: l.contexts[p.Context].MaxActivePerPeer}
		}
	}
	for i := range l.calls {
		c := &l.calls[i]
		if c.Kind != kinds[inspect.EventTarget] || c.State != "waiting" {
			continue
		}
		limit := &contexts[c.Context]
		for _, r := range []*reached{peers[c.busy], methods[c.Method]} {
			if r != nil && r.most > 0 && r.share() >= limit.share() {
				limit = r
			}
		}
		limit.waiting++
	}
	for i := range l.calls {
		if c := &l.calls[i]; c.Kind == kinds[inspect.EventTarget] && hasPlace(c.State) {
			peers[c.busy].counts(c.Method)
			contexts[c.Context].counts(c.Method)
		}
	}
	for i := range l.methods {
		m := &l.methods[i]
		if r := methods[m.Name]; r != nil && r.waiting > 0 && m.Kind == kinds[inspect.EventTarget] {
			all = append(all, Cause{stays: "limit of method " + m.Name, Kind: "limit", Method: m.Name, Count: r.waiting, Text: fmt.Sprintf(
				"%s of %s %s for a handler to end: %s. Handlers are too slow, or the limit is too low.",
				plural(r.waiting, "request", "requests"), m.Name, verb(r.waiting, "waits", "wait"), r.inWords("of this method (qs.MaxConcurrent)"))})
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		if r := peers[session{p.Context, p.addr}]; r != nil && r.waiting > 0 {
			method, most := r.mostOf()
			all = append(all, Cause{stays: "limit of peer " + p.Address, Kind: "limit", Method: method, Peer: p.Address, Count: r.waiting, Text: fmt.Sprintf(
				"%s of %s %s for others of this peer to end: %s%s. The limit keeps requests of other peers from waiting for those of this one. %s",
				plural(r.waiting, "request", "requests"), p.Label, verb(r.waiting, "waits", "wait"), r.inWords("for one peer (HG.MaxActivePerPeer)"), most, l.adviceFor(p))})
		}
	}
	for i := range l.contexts {
		c, r := &l.contexts[i], contexts[i]
		if r.waiting > 0 {
			method, most := r.mostOf()
			all = append(all, Cause{stays: fmt.Sprint("limit of context ", i), Kind: "limit", Method: method, Count: r.waiting, Text: fmt.Sprintf(
				"%s for a handler to end: %s%s. Handlers are slow, wait for each other, or there are too few servers.",
				plural(r.waiting, "request waits", "requests wait"), r.inWords("(HG.MaxActive)"), most)})
		}
		if c.Budget > 0 && c.Reserved > c.Budget-c.Budget/fullShare {
			all = append(all, Cause{Kind: "limit", Text: fmt.Sprintf(
				"The memory that is guaranteed to peers is used up: %s of %s for %s (qs.Config.MaxPeers). Idle ones are disconnected to make room for others; if none is idle, new ones cannot connect.",
				bytesText(c.Reserved), bytesText(c.Budget), plural(c.Peers, "peer", "peers"))})
		}
	}
	return append(all, l.withoutWorker()...)
}

// adviceFor says what to do about a peer whose requests wait for each other.
func (l *look) adviceFor(p *Peer) string {
	minute, before := l.p.counted.peerRates(p.addr.Name(), l.now)
	if minute.Count >= enoughCalls && before.Covers >= usualLeast && minute.PerSecond >= callsMore*before.PerSecond {
		return fmt.Sprintf("It calls far more often than before: %.3g each second in the last minute, and %.3g in %s before. Find out why, and have it call less: a higher limit would "+
			"have the requests of others wait for it.", minute.PerSecond, before.PerSecond, took(before.Covers))
	}
	return "Have it call less at a time. Only if it needs as many, and what its handlers use has room for more, raise the limit."
}

// withoutWorker finds requests that have room and no goroutine.
func (l *look) withoutWorker() []Cause {
	n, oldest := 0, time.Duration(0)
	for i := range l.calls {
		if c := &l.calls[i]; c.State == "given" && c.Kind == kinds[inspect.EventTarget] && c.Age >= l.stalledAfter() {
			n++
			oldest = max(oldest, c.Age)
		}
	}
	if n == 0 {
		return nil
	}
	return []Cause{{Kind: "limit", Count: n, Text: fmt.Sprintf(
		"%s for a worker, the oldest for %s: as many handlers run as may (qs.Config.MaxConcurrent), or nothing drives the node (Serve).", plural(n, "request waits", "requests wait"), took(oldest))}}
}

// noRoom finds peers that take no messages.
func (l *look) noRoom() (all []Cause) {
	for i := range l.peers {
		p := &l.peers[i]
		if p.Waiting == 0 || p.Free > 0 {
			continue
		}
		oldest := time.Duration(0)
		for _, addr := range []session{{p.Context, p.addr}, {p.Context, p.addr.Named()}} {
			if w := l.work[addr]; w != nil {
				oldest = max(oldest, w.oldest)
			}
		}
		if oldest < l.stalledAfter() {
			continue
		}
		all = append(all, Cause{Kind: "no room at peer", Peer: p.Address, Count: p.Waiting, Text: fmt.Sprintf(
			"%s takes no messages: all %d envelopes that it guarantees are used, and %s here for one. The oldest call to it has been under way for %s. Nothing drives it, or its handlers are all busy: look at its own page.",
			p.Label, p.Promised, plural(p.Waiting, "message waits", "messages wait"), took(oldest))})
	}
	return all
}

// A groupKey is what calls of a cause have in common.
type groupKey struct{ kind, method, state string }

// A group is calls of which one cause tells.
type group struct {
	key    groupKey
	n      int
	oldest *Call
	peers  map[peerPlace]hg.Addr // the other sides of all of them
}

// with names the other side of a group: the only one there is, or how many there are.
func (g *group) with() string {
	if len(g.peers) == 1 {
		return g.way() + " " + g.oldest.Peer
	}
	return fmt.Sprintf("%s %d peers", g.way(), len(g.peers))
}

// way is the word between a call and its other side.
func (g *group) way() string {
	if g.key.kind == kinds[inspect.EventTarget] {
		return "from"
	}
	return "to"
}

// groups puts those of calls together that pick wants, those with the oldest first.
func groups(calls []Call, pick func(c *Call) bool) (all []*group) {
	of := map[groupKey]*group{}
	for i := range calls {
		c := &calls[i]
		if !pick(c) {
			continue
		}
		key := groupKey{c.Kind, c.Method, c.Means}
		g := of[key]
		if g == nil {
			g = &group{key: key, oldest: c, peers: map[peerPlace]hg.Addr{}}
			of[key] = g
			all = append(all, g)
		}
		g.n++
		g.peers[peerPlace{c.Context, c.Address}] = c.busy.peer
		if c.Age > g.oldest.Age {
			g.oldest = c
		}
	}
	slices.SortStableFunc(all, func(a, b *group) int { return cmp.Compare(b.oldest.Age, a.oldest.Age) })
	return all
}

func (l *look) stuckStreams() (all []Cause) {
	stuck := func(c *Call) bool { return c.stream().Stuck >= l.stalledAfter() }
	for _, g := range groups(l.streams, stuck) {
		c, others := g.oldest, -g.n
		for i := range l.streams {
			o := &l.streams[i]
			if o.Kind != c.Kind || o.Method != c.Method {
				continue
			}
			if others++; o.Stream.Stuck > c.Stream.Stuck { // the longest
				c = o
			}
		}
		text := fmt.Sprintf("%s of %s %s still: ", plural(g.n, "stream", "streams"), c.Method, verb(g.n, "stands", "stand"))
		waits := fmt.Sprintf("for %s, and %s wait for it.", took(c.Stream.Stuck), bytesText(c.Stream.Waiting))
		if c.Kind == kinds[inspect.EventOrigin] {
			text += fmt.Sprintf("the loop of this process has taken nothing of %s %s The loop does something else, or waits.", c.Peer, waits)
		} else {
			caller := "the caller, " + c.Peer
			if len(g.peers) > 1 {
				caller = fmt.Sprintf("the callers are %d peers, the first of which, %s", len(g.peers), c.Peer)
			}
			text += fmt.Sprintf("%s, has taken nothing %s The handler waits in send. The loop of the caller does something else, or waits.", caller, waits)
		}
		if others > 0 {
			text += fmt.Sprintf(" %s of %s %s on.", plural(others, "other stream", "other streams"), c.Method, verb(others, "goes", "go"))
		}
		all = append(all, Cause{Kind: "stuck stream", Method: c.Method, Peer: c.Address, Count: g.n, Text: text})
	}
	return all
}

// stalled finds calls that are older than those of their method are.
func (l *look) stalled() (all []Cause) {
	late := func(c *Call) bool {
		held := c.Kind == kinds[inspect.EventTarget] && (c.State == "waiting" || c.State == "given") // limits tells of these
		w := l.usual(c)
		return c.Age >= l.stalledAfter() && !held && !inspect.IsBuiltIn(c.Method) && (w.Count < enoughCalls || c.Age > slowerBy*w.P99)
	}
	for _, g := range groups(l.calls, late) {
		c := g.oldest
		oldest := "the oldest"
		if len(g.peers) > 1 {
			oldest = fmt.Sprintf("the oldest, with %s,", c.Peer)
		}
		text := fmt.Sprintf("%s of %s %s %s for more than %s, %s for %s: %s.",
			plural(g.n, c.Kind, c.Kind+"s"), c.Method, g.with(), verb(g.n, "has been under way", "have been under way"),
			took(l.stalledAfter()), oldest, took(c.Age), c.Means)
		text += l.ended(g)
		if c.Size > 0 {
			text += fmt.Sprintf(" Of what it lends %s of %s have been moved, what was read ahead included.", bytesText(c.Moved), bytesText(c.Size))
		}
		if w := l.usual(c); w.Count >= enoughCalls {
			text += fmt.Sprintf(" Usually 99 %% take no longer than %s.", took(w.P99))
		}
		if c.State == "running" && c.Kind == kinds[inspect.EventTarget] {
			if g.n > 1 {
				text += " They may all wait for something that none of them holds, a lock for example."
			}
			text += " A goroutine profile of this process shows where the handler is."
		}
		all = append(all, Cause{Kind: "stalled", Method: c.Method, Peer: c.Address, Count: g.n, Text: text})
	}
	return all
}

// ended says how many calls like those of g have ended in the last minute, with the same peers and with others: whether the method hangs, or the calls of
// some peers do.
func (l *look) ended(g *group) string {
	i := slices.IndexFunc(l.methods, func(m Method) bool { return m.Kind == g.key.kind && m.Name == g.key.method })
	if i < 0 || !l.p.observed.Load() {
		return ""
	}
	all := int(l.methods[i].Minute.Count)
	if all == 0 {
		return fmt.Sprintf(" No %s of %s has ended in the last minute.", g.key.kind, g.key.method)
	}
	own, counted := 0, map[string]bool{}
	for _, addr := range g.peers {
		name := addr.Name()
		if counted[name] { // with another context
			continue
		}
		counted[name] = true
		n, known := l.p.counted.endedWith(name, g.key.kind, g.key.method, l.now)
		if !known {
			return fmt.Sprintf(" In the last minute %s of %s %s ended.", plural(all, g.key.kind, g.key.kind+"s"), g.key.method, verb(all, "has", "have"))
		}
		own += n
	}
	with := "these peers"
	if len(g.peers) == 1 {
		with = g.oldest.Peer
	}
	others := max(all-own, 0)
	text := fmt.Sprintf(" In the last minute %s of %s %s ended: %s %s %s, %s %s others.",
		plural(all, g.key.kind, g.key.kind+"s"), g.key.method, verb(all, "has", "have"), noneOr(own), g.way(), with, noneOr(others), g.way())
	if own == 0 && others >= enoughCalls {
		text += fmt.Sprintf(" So it is not the method that hangs, but the %ss %s %s.", g.key.kind, g.way(), with)
	}
	return text
}

// noneOr writes a number, and 0 as a word.
func noneOr(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// leaks finds what is never given back.
func (l *look) leaks() (all []Cause) {
	first, past := l.p.history(l.now)
	now := l.p.sample(l.now)
	for _, kind := range []struct {
		name, text string
		value      func(processSample) int64
		owner      func(c *Cause) // says in it what they are for
	}{
		{
			"handles", "Something calls Create of package hg, and not Close of the handle. With hg.Config.Trace the error of Shutdown names where they were made.",
			func(s processSample) int64 { return s.handles }, l.ownerOfHandles,
		},
		{
			"registered regions of memory", "Something calls Create or Alloc of package bulk, and not Close: this process, or it waits for a peer that no longer says that it is done.",
			func(s processSample) int64 { return s.regions }, l.userOfMemory,
		},
	} {
		g := growthOf(first, past, now, kind.value)
		if !g.leaks {
			continue
		}
		c := Cause{Kind: "leak", Count: int(g.have), Text: fmt.Sprintf("%d %s are not in use and not closed", g.have, kind.name)}
		if g.perSecond > 0 {
			c.Text += fmt.Sprintf(", and in the last %s have become %.3g more each second", took(g.over), g.perSecond)
		} else {
			c.Text += ", and nothing is known of before: this goes away within a minute if they do not become more"
		}
		kind.owner(&c)
		c.Text += ". " + kind.text
		all = append(all, c)
	}
	return all
}

// ownerOfHandles says in c which method and which peer most of the handles that are not in use are for.
func (l *look) ownerOfHandles(c *Cause) {
	type owner struct{ method, peer string }
	of, method, peer, n := map[owner]int64{}, "", hg.Addr{}, int64(0)
	for _, s := range l.sources {
		s.unused(func(m string, p hg.Addr) {
			key := owner{m, p.Name()}
			if of[key]++; of[key] > n {
				method, peer, n = m, p, of[key]
			}
		})
	}
	if n > 0 {
		c.Method, c.Peer = clean(method), clean(peer.Name())
		c.Text += fmt.Sprintf("; %d of them are for %s to %s", n, c.Method, l.label(peer))
	}
}

// userOfMemory says in c how large the registered memory is, which peer most of it was used by, or that none has used it.
func (l *look) userOfMemory(c *Cause) {
	of, looked, bytes := map[memoryUse]int{}, 0, int64(0)
	var most memoryUse
	for _, s := range l.sources {
		for _, m := range s.memory(leakLooks) {
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
		user = "the session of the peer that has used them has ended"
		if i := slices.IndexFunc(l.peers, func(p Peer) bool { return p.addr.Session() == most.user }); i >= 0 {
			user, c.Peer = l.peers[i].Label+" has used them last", l.peers[i].Address
		}
	}
	about, which := "", fmt.Sprintf("all %d", looked)
	if c.Count > looked {
		about, which = "about ", fmt.Sprintf("all of the %d that were looked at", looked)
		bytes = int64(float64(bytes) / float64(looked) * float64(c.Count))
	}
	if of[most] < looked {
		which = fmt.Sprintf("%d of the %d that were looked at", of[most], looked)
	}
	c.Text += fmt.Sprintf(". Together they are %s%s; %s are alike: %s each, for peers to %s, and %s", about, bytesText(bytes), which, bytesText(most.size), most.access, user)
}

// A growth is what has become of a value.
type growth struct {
	have      int64
	perSecond float64       // by how much it has grown,
	over      time.Duration // in this time; 0 if that is not known
	leaks     bool
}

// growthOf judges what has become of a value: in ten minutes, in a few or in the last. Of a page that has not counted for long so much may be
// there that it is told as well.
func growthOf(first processSample, past []processSample, now processSample, value func(processSample) int64) growth {
	have := value(now)
	if n := len(past); n >= leakSamples {
		for _, samples := range leakWindows {
			from := max(n-samples, 0)
			if from > 0 && have <= value(slices.MaxFunc(past[:from], func(a, b processSample) int { return cmp.Compare(value(a), value(b)) })) {
				continue // it has been as many before
			}
			if g := growthIn(past[from:], value); g.leaks {
				g.have = have
				return g
			}
		}
		return growth{}
	}
	since := now.at - first.at
	if since < leakSamples*slotTime {
		return growth{have: have, leaks: have >= leakMany}
	}
	grew := have - value(first)
	return growth{have, float64(grew) / since.Seconds(), since, grew >= leakMany}
}

// growthIn compares the least of each third of samples, so that what comes and goes is no leak, nor what has grown once: it leaks if these grow
// all the time, and enough, or less for long.
func growthIn(samples []processSample, value func(processSample) int64) growth {
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
	enough := grew >= leakLeast && grew*2 >= a || grew >= leakSteadily && over >= leakTime
	return growth{0, float64(grew) / max(samples[2*n/3].at-samples[0].at, slotTime).Seconds(), over, steady && enough}
}

// A slowMethod is a method that is slower than usual.
type slowMethod struct {
	*Method
	slowness
}

// slower finds methods that take longer in the last minute than is usual, those first that are the most times slower. What slows most of them down is
// told once, and beside it those that it does not explain. One whose median is far out is never among those that are told together for their
// 99th percentiles.
func (l *look) slower() (all []Cause) {
	var moments []Cause // that some calls of many methods are slow says less than that most calls of one are
	common := slowness{tail: l.commonTail()}
	for _, kind := range []inspect.EventKind{inspect.EventTarget, inspect.EventOrigin} {
		var slow []slowMethod
		judged := 0
		for i := range l.methods {
			m := &l.methods[i]
			if m.Kind != kinds[kind] || !m.isJudged() {
				continue
			}
			judged++
			if s, is := slower(m.Minute, m.usual); is {
				slow = append(slow, slowMethod{m, s})
			}
		}
		slices.SortStableFunc(slow, func(a, b slowMethod) int { return b.compareTo(a) })
		n := slices.IndexFunc(slow, func(m slowMethod) bool { return !m.half() })
		if n < 0 {
			n = len(slow)
		}
		halves, tails := slow[:n], slow[n:]
		most := func(some []slowMethod) bool { return len(some) >= allSlower && 2*len(some) >= judged }
		switch {
		case most(halves):
			all = append(all, l.slowTogether(kind, slow, judged))
			common.median.atLeast(middle(halves, func(m slowMethod) change { return m.median }))
			common.tail.atLeast(middle(slow, func(m slowMethod) change { return m.tail }))
		case most(slow) && len(tails) >= allSlower:
			moments = append(moments, l.slowTogether(kind, tails, judged))
			common.tail.atLeast(middle(tails, func(m slowMethod) change { return m.tail }))
		}
		for _, m := range slow {
			if !m.isExplainedBy(common) {
				all = append(all, l.slowMethod(m, common))
			}
		}
	}
	return append(all, moments...)
}

// compareTo orders by the medians, and where these are not slow by the 99th percentiles.
func (m slowMethod) compareTo(o slowMethod) int {
	switch {
	case m.half() && o.half():
		return cmp.Compare(m.median.times, o.median.times)
	case m.half():
		return 1
	case o.half():
		return -1
	}
	return cmp.Compare(m.tail.times, o.tail.times)
}

// isJudged reports whether enough is known of m to say whether it is slow.
func (m *Method) isJudged() bool {
	return !inspect.IsBuiltIn(m.Name) && m.Minute.Count >= enoughCalls && m.usual.isEnough()
}

// commonTail returns how much slower than usual the 99th percentile is of half of the methods that do not count as slow: on a machine that is busy for
// moments it grows for all. It is zero if these are few.
func (l *look) commonTail() change {
	var calm []slowMethod
	for i := range l.methods {
		m := &l.methods[i]
		if !m.isJudged() {
			continue
		}
		if s, slow := slower(m.Minute, m.usual); !slow {
			calm = append(calm, slowMethod{m, s})
		}
	}
	if len(calm) < allSlower {
		return change{}
	}
	return middle(calm, func(m slowMethod) change { return m.tail })
}

// middle returns how much slower the one in the middle is, by each measure.
func middle(some []slowMethod, of func(m slowMethod) change) change {
	var times []float64
	var more []time.Duration
	for _, m := range some {
		times, more = append(times, of(m).times), append(more, of(m).more)
	}
	slices.Sort(times)
	slices.Sort(more)
	return change{times: times[len(times)/2], more: more[len(more)/2]}
}

// slowTogether tells of methods, the worst first, that became slow together: half of the calls of most of them, or only the slowest calls of all of them.
func (l *look) slowTogether(kind inspect.EventKind, slow []slowMethod, judged int) Cause {
	worst := slow[0]
	what, lead := "requests", "Everything is slower than usual: the process or the machine is busy."
	elsewhere := "Look at what else runs on this machine, and at what all handlers wait for."
	if kind == inspect.EventOrigin {
		what, lead = "calls", "All calls are slower than usual: the peers, the network, or this process or its machine are busy."
		elsewhere = "Look at the pages of the peers, and at what else runs on this machine."
	}
	most := fmt.Sprintf("%s the most, half of which take %.3g times as long", worst.Name, worst.median.times)
	if !worst.half() {
		lead = fmt.Sprintf("The slowest %s of many methods take longer than usual, and the others hardly do: something is busy at moments.", what)
		most = fmt.Sprintf("%s the most, of which one of a hundred takes %.3g times as long", worst.Name, worst.tail.times)
	}
	if l.isBusy() {
		elsewhere = "The processors are what they wait for: a CPU profile of this process shows what it does."
	}
	return Cause{stays: "slow " + what, Kind: "slow", Count: len(slow), Text: fmt.Sprintf(
		"%s It is so for the %s of %d of %d methods, %s. This process has used %s, and has %d goroutines and %s of memory. %s",
		lead, what, len(slow), judged, most, l.usage.processors(), l.usage.Goroutines, bytesText(l.usage.Memory), elsewhere)}
}

// slowMethod tells of a method that is slow in another way than most.
func (l *look) slowMethod(m slowMethod, common slowness) Cause {
	now, usual := m.Minute, m.usual
	text := fmt.Sprintf("one of a hundred took more than %s in the last minute, and %s", took(now.P99), took(usual.P99))
	if m.half() && !(m.few() && m.median.isExplainedBy(common.median)) {
		text = fmt.Sprintf("half of them took more than %s in the last minute, and %s", took(now.P50), took(usual.P50))
	}
	since := ""
	if ago := l.now - m.slowSince; m.slowSince > 0 && ago >= time.Minute {
		since = " for " + took(ago)
	}
	text = fmt.Sprintf("%ss of %s are slower than usual%s: %s in %s before. There were %.3g each second, and %.3g before.",
		strings.ToUpper(m.Kind[:1])+m.Kind[1:], m.Name, since, text, took(usual.Covers), now.PerSecond, usual.PerSecond)
	if m.Kind == kinds[inspect.EventTarget] {
		text += l.waitOrCompute(m.Name)
	}
	return Cause{stays: "slow " + m.Kind + " of " + m.Name, Kind: "slow", Method: m.Name, Text: text}
}

// waitOrCompute says whether requests of a method that take long wait for others, or their handlers for a processor or something else, and which
// profile shows what they do.
func (l *look) waitOrCompute(method string) string {
	w := l.running[methodKey{inspect.EventTarget, method}]
	switch {
	case w != nil && w.waiting > 0:
		return fmt.Sprintf(" %d of them %s now for others to end, which is part of the time: see the limit that is reached.", w.waiting, verb(w.waiting, "waits", "wait"))
	case l.usage.CPU == 0: // it is not known
		return ""
	case l.isBusy():
		return fmt.Sprintf(" This process has used %s, which its handlers may lack: a CPU profile shows what it does.", l.usage.processors())
	}
	return fmt.Sprintf(" This process has used %s: its handlers wait, and a goroutine profile shows for what, unless other processes take the processors.", l.usage.processors())
}

// failing finds methods of which more than a few calls fail.
func (l *look) failing() (all []Cause) {
	for i := range l.methods {
		m := &l.methods[i]
		w := m.Minute
		if inspect.IsBuiltIn(m.Name) || w.Errors < failingLeast || w.Errors*failingShare < w.Count {
			continue
		}
		text := fmt.Sprintf("%d of %d %ss of %s in the last minute failed", w.Errors, w.Count, m.Kind, m.Name)
		for j := range l.errors { // the most frequent first
			if e := &l.errors[j]; e.Kind == m.Kind && e.Method == m.Name && e.ago <= covered(l.now, minuteSlots) {
				text += ", most with " + strings.TrimSuffix(e.Error, ".")
				if e.Text != "" && e.Text != e.Error {
					text += fmt.Sprintf(", the last said %q", e.Text)
				}
				break
			}
		}
		all = append(all, Cause{Kind: "errors", Method: m.Name, Count: int(w.Errors), Text: text + "."})
	}
	return all
}

// verb returns the form of a verb for n of something.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// plural writes a number with its noun.
func plural(n int, one, many string) string {
	return fmt.Sprintf("%d %s", n, verb(n, one, many))
}
