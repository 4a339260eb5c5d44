package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// A gossip is memberlist as a Source. There each process has a name of its own, "NAME#START", so that one that was restarted need
// not wait until the one before has failed. START is the incarnation that it begins with; the one that counts is in its card.
//
//	memberlist: join, update, leave, ack; its log: "Suspect ..." ─► told ─► queue ─► run ─► report
type gossip struct {
	o     *Options
	full  string // memberlist's name of this process
	list  *memberlist.Memberlist
	stop  context.CancelFunc
	ctx   context.Context
	tasks sync.WaitGroup

	mu      sync.Mutex                 // guards the fields below
	card    card                       // of this process
	encoded []byte                     // card
	members map[string]Member          // by memberlist's name
	nodes   map[string]memberlist.Node // likewise, copies: what memberlist gives out it writes to later
	missed  map[string]string          // likewise: host:port of those that failed
	queue   []Member                   // to be reported
	leaving map[string]bool            // likewise: those that said so, known or not; a name is never used again
	wake    chan struct{}              // has an element: queue is not empty

	words memberlist.TransmitLimitedQueue // of leave, for GetBroadcasts. Its lock is an outer one of mu
}

// seekEvery is how often one that is alone, or misses others, looks for them.
const (
	seekEvery  = 2 * time.Second
	maxMissed  = 64
	maxLeaving = 16 << 10
	maxWord    = 128 + 1 + 13 // bytes: the longest name of memberlist's
)

func newGossip(o *Options, incarnation uint64) *gossip {
	s := &gossip{
		o: o, full: o.Name + "#" + strconv.FormatUint(incarnation, 36),
		card:    card{Addr: o.Addr, Serves: o.Serves, Meta: o.Meta, Incarnation: incarnation},
		members: map[string]Member{}, nodes: map[string]memberlist.Node{}, missed: map[string]string{}, leaving: map[string]bool{}, wake: make(chan struct{}, 1),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.words = memberlist.TransmitLimitedQueue{NumNodes: s.size, RetransmitMult: retransmits}
	return s
}

// size returns how many members are known.
func (s *gossip) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes)
}

// open starts memberlist.
func (s *gossip) open() (err error) {
	if s.encoded, err = s.card.encode(); err != nil {
		return err
	}
	cfg, err := s.config()
	if err != nil {
		return err
	}
	s.list, err = memberlist.Create(cfg)
	return err
}

// enter finds the others, and has this process count among them.
func (s *gossip) enter(ctx context.Context, r *rendezvous.Member) error {
	if err := s.find(ctx, r); err != nil {
		return err
	}
	if s.raise() {
		_ = s.list.UpdateNode(s.o.Probe) // in time or not, it is told
	}
	return nil
}

// raise puts the incarnation of this process above those of the other processes of its name that are known, and reports whether
// it had to: with a clock that is behind it starts with a lower one. It is called once, when the process joins: of two processes of
// one name the one that has joined last counts.
func (s *gossip) raise() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := uint64(0)
	for full, m := range s.members {
		if m.Name == s.o.Name && full != s.full {
			most = max(most, m.Incarnation)
		}
	}
	if most < s.card.Incarnation || most == math.MaxUint64 {
		return false
	}
	raised := s.card
	raised.Incarnation = most + 1
	encoded, err := raised.encode()
	if err != nil {
		return false // it has no room in the card
	}
	s.card, s.encoded = raised, encoded
	return true
}

// find finds the others.
func (s *gossip) find(ctx context.Context, r *rendezvous.Member) error {
	seeds := s.o.Seeds
	if r != nil {
		own := s.list.LocalNode().Address()
		set, err := r.CollectWait(ctx, rendezvous.LabelUser, []byte(own))
		if err != nil {
			return err
		}
		for _, part := range set.Parts() {
			if p := string(part); p != own && p != "" {
				seeds = append(slices.Clip(seeds), p)
			}
		}
		if err := r.DoneWait(ctx); err != nil {
			return err
		}
		s.o.Seeds = seeds
	}
	if len(seeds) == 0 {
		return nil
	}
	said := make(chan error, 1)
	var last error
	for {
		go func() { said <- s.join(ctx, seeds) }() // one that is frozen takes it 4 × Probe
		select {
		case last = <-said:
			if last == nil {
				return nil
			}
		case <-ctx.Done():
			return noSeed(ctx, last)
		}
		select {
		case <-ctx.Done():
			return noSeed(ctx, last)
		case <-time.After(s.o.Probe):
		}
	}
}

func noSeed(ctx context.Context, last error) error {
	if last == nil {
		last = errors.New("there was no answer yet")
	}
	return fmt.Errorf("no seed has answered: %w, at last: %w", context.Cause(ctx), last)
}

// join asks all seeds, one after the other, until ctx ends. It returns nil if one has answered.
func (s *gossip) join(ctx context.Context, seeds []string) error {
	answered, errs := false, []error(nil)
	for _, seed := range seeds {
		if ctx.Err() != nil {
			break
		}
		_, err := s.list.Join([]string{seed})
		answered, errs = answered || err == nil, append(errs, err)
	}
	if answered {
		return nil
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// Watch implements Source.
func (s *gossip) Watch(report func(Member)) error {
	s.drain(report)
	s.tasks.Go(func() {
		for s.ctx.Err() == nil {
			s.drain(report)
			select {
			case <-s.wake:
			case <-s.ctx.Done():
			}
		}
	})
	s.tasks.Go(s.seek)
	return nil
}

// drain reports what is queued.
func (s *gossip) drain(report func(Member)) {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, m := range queue {
		report(m)
	}
}

// seek looks for members that failed, and for seeds while this process is alone: a network that was divided for longer than memberlist
// remembers comes together again.
func (s *gossip) seek() {
	tick := time.NewTicker(seekEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		var missed []string
		if s.list.NumMembers() == 1 {
			missed = slices.Clone(s.o.Seeds)
		}
		s.mu.Lock()
		for _, at := range s.missed {
			if len(missed) < maxMissed && !slices.Contains(missed, at) {
				missed = append(missed, at)
			}
		}
		s.mu.Unlock()
		for _, at := range missed {
			asked := make(chan struct{})
			go func() { // one that is frozen takes it 4 × Probe
				_, _ = s.list.Join([]string{at})
				close(asked)
			}()
			select {
			case <-asked:
			case <-s.ctx.Done():
				return
			}
		}
	}
}

// maxTelling is how many members are told at once; one that is frozen takes long.
const maxTelling = 16

// await reports whether something came before ctx ended.
func await(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// Leave implements Source. The word goes to each member that is known, and by gossip to those that are not, before the end does: that
// alone looks like a failure.
func (s *gossip) Leave(ctx context.Context) error {
	limit := 5 * time.Second
	if at, ok := ctx.Deadline(); ok {
		limit = max(time.Until(at), time.Millisecond)
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	s.mu.Lock()
	others := slices.Collect(maps.Values(s.nodes))
	s.mu.Unlock()
	others = slices.DeleteFunc(others, func(n memberlist.Node) bool { return n.Name == s.full })
	told := make(chan struct{}, len(others))
	for i, n := range others {
		if i >= maxTelling && !await(ctx, told) {
			break
		}
		go func() {
			_ = s.list.SendReliable(&n, []byte(s.full)) // it will learn it from others, or take it for a failure
			told <- struct{}{}
		}()
	}
	for range min(len(others), maxTelling) {
		if !await(ctx, told) {
			break
		}
	}
	if len(others) == 0 {
		_ = s.list.Leave(limit)
		return nil
	}
	sent := make(chan struct{})
	s.words.QueueBroadcast(&word{s.full, sent})
	select {
	case <-sent:
	case <-ctx.Done():
	}
	at, _ := ctx.Deadline()
	if err := s.list.Leave(max(time.Until(at), time.Millisecond)); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	return nil
}

// A word says by gossip that a member leaves.
type word struct {
	full string
	sent chan struct{} // closed when it has been sent often enough; or nil
}

// Message, Finished, Invalidates and UniqueBroadcast implement memberlist.UniqueBroadcast.
func (w *word) Message() []byte { return []byte(w.full) }
func (w *word) Finished() {
	if w.sent != nil {
		close(w.sent)
	}
}
func (w *word) Invalidates(memberlist.Broadcast) bool { return false }
func (w *word) UniqueBroadcast()                      {}

// Close implements Source.
func (s *gossip) Close() error {
	s.stop()
	err := s.list.Shutdown()
	s.tasks.Wait()
	return err
}

// told queues what memberlist says of a node, as change makes it.
func (s *gossip) told(n *memberlist.Node, change func(m *Member)) {
	name, _, ok := strings.Cut(n.Name, "#")
	var c card
	if !ok || msgpack.Unmarshal(n.Meta, &c) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[n.Name]
	m.Name, m.Addr, m.Serves, m.Meta, m.Incarnation = name, c.Addr, c.Serves, c.Meta, c.Incarnation
	s.nodes[n.Name] = *n
	change(&m)
	s.say(n.Name, m)
}

// say queues m. Behind one that has ended it queues the other processes of its name, of which one counts now. Locked.
func (s *gossip) say(full string, m Member) {
	s.members[full] = m
	s.queue = append(s.queue, m) // report takes no time: it does not grow
	if !m.live() {
		delete(s.members, full)
		delete(s.nodes, full)
		for _, other := range s.members {
			if other.Name == m.Name {
				s.queue = append(s.queue, other)
			}
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// NotifyAlive implements memberlist.AliveDelegate: it lets in what can be a member.
func (s *gossip) NotifyAlive(n *memberlist.Node) error {
	var c card
	if err := msgpack.Unmarshal(n.Meta, &c); err != nil {
		return fmt.Errorf("it is no member of a group of Quicksilver: %w", err)
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (s *gossip) NotifyJoin(n *memberlist.Node) {
	s.told(n, func(m *Member) {
		m.State = Alive
		delete(s.missed, n.Name)
	})
}

// NotifyUpdate implements memberlist.EventDelegate.
func (s *gossip) NotifyUpdate(n *memberlist.Node) { s.told(n, func(*Member) {}) }

// NotifyLeave implements memberlist.EventDelegate.
func (s *gossip) NotifyLeave(n *memberlist.Node) {
	s.told(n, func(m *Member) {
		if m.State = Left; !s.leaving[n.Name] {
			m.State = Failed
			if len(s.missed) >= maxMissed {
				clear(s.missed)
			}
			s.missed[n.Name] = net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
		}
	})
}

// NotifyPingComplete implements memberlist.PingDelegate.
func (s *gossip) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.members[n.Name]; ok && m.State == Suspected {
		m.State = Alive
		s.say(n.Name, m)
	}
}

// suspects is called when a probe was not answered.
func (s *gossip) suspects(full string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.members[full]; ok && m.State == Alive {
		m.State = Suspected
		s.say(full, m)
	}
}

// AckPayload implements memberlist.PingDelegate.
func (s *gossip) AckPayload() []byte { return nil }

// NodeMeta implements memberlist.Delegate.
func (s *gossip) NodeMeta(int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.encoded
}

// NotifyMsg implements memberlist.Delegate: a member leaves. The first time it is heard it is passed on.
func (s *gossip) NotifyMsg(name []byte) {
	if len(name) > maxWord {
		return
	}
	full := string(name)
	s.mu.Lock()
	heard := s.leaving[full]
	if len(s.leaving) >= maxLeaving {
		clear(s.leaving)
	}
	s.leaving[full] = true
	s.mu.Unlock()
	if !heard {
		s.words.QueueBroadcast(&word{full: full})
	}
}

// GetBroadcasts implements memberlist.Delegate: words that are to be passed on.
func (s *gossip) GetBroadcasts(overhead, limit int) [][]byte {
	return s.words.GetBroadcasts(overhead, limit)
}

// LocalState and MergeRemoteState implement memberlist.Delegate.
func (s *gossip) LocalState(bool) []byte        { return nil }
func (s *gossip) MergeRemoteState([]byte, bool) {}

// logger returns what memberlist logs to. Of a suspicion it says only there.
func (s *gossip) logger() *log.Logger { return log.New(logWriter{s}, "", 0) }

type logWriter struct{ s *gossip }

// Write implements io.Writer.
func (w logWriter) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	level, rest, _ := strings.Cut(text, " memberlist: ")
	if name, ok := strings.CutPrefix(rest, "Suspect "); ok {
		name, _, _ = strings.Cut(name, " has failed")
		w.s.suspects(name)
	}
	switch level {
	case "[ERR]":
		w.s.o.Logger.Error("memberlist: " + rest)
	case "[WARN]":
		w.s.o.Logger.Warn("memberlist: " + rest)
	default:
		w.s.o.Logger.Debug("memberlist: " + rest)
	}
	return len(line), nil
}
