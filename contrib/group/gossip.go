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

// A gossip is a Source that uses memberlist. Each process has a unique node name in memberlist, "NAME#START", so that a
// restarted process need not wait until its predecessor is declared failed. START is the process's initial incarnation.
// The current one is in its card.
//
// Delegates of memberlist report members that join, change, leave or answer a probe, and its log reports members that
// are suspected. Each report queues a member, which reportQueued passes to the report function.
type gossip struct {
	options  *Options
	nodeName string // this process's node name in memberlist
	list     *memberlist.Memberlist
	stop     context.CancelFunc
	ctx      context.Context
	tasks    sync.WaitGroup

	mu      sync.Mutex                 // guards the fields below
	card    card                       // this process's card
	encoded []byte                     // encoded card
	members map[string]Member          // members by node name
	nodes   map[string]memberlist.Node // copies of the nodes by node name, because memberlist modifies the nodes that it passes to delegates
	missed  map[string]string          // host:port of failed members by node name
	queue   []Member                   // members to report
	leaving map[string]bool            // node names of members that have announced that they are leaving, including unknown members; node names are never reused
	wake    chan struct{}              // has an element while queue is not empty

	broadcasts memberlist.TransmitLimitedQueue // broadcasts for GetBroadcasts, all of type leaveBroadcast; its lock is acquired before mu
}

// rejoinInterval is the time between attempts to rejoin failed members, or to join the seeds while no other member is
// known.
const (
	rejoinInterval = 2 * time.Second
	maxMissed      = 64
	maxLeaving     = 16 << 10
	maxNodeName    = 128 + 1 + 13 // in bytes, including the incarnation; memberlist's limit
)

func newGossip(o *Options, incarnation uint64) *gossip {
	s := &gossip{
		options: o, nodeName: o.Name + "#" + strconv.FormatUint(incarnation, 36),
		card:    card{Addr: o.Addr, Serves: o.Serves, Meta: o.Meta, Incarnation: incarnation},
		members: map[string]Member{}, nodes: map[string]memberlist.Node{}, missed: map[string]string{}, leaving: map[string]bool{}, wake: make(chan struct{}, 1),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.broadcasts = memberlist.TransmitLimitedQueue{NumNodes: s.countMembers, RetransmitMult: retransmits}
	return s
}

// countMembers returns the number of known members.
func (s *gossip) countMembers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes)
}

// open starts memberlist.
func (s *gossip) open() (err error) {
	if s.encoded, err = s.card.marshal(); err != nil {
		return err
	}
	cfg, err := s.newConfig()
	if err != nil {
		return err
	}
	s.list, err = memberlist.Create(cfg)
	return err
}

// joinGroup joins the other members and makes this process take precedence over older processes with its name.
func (s *gossip) joinGroup(ctx context.Context, r *rendezvous.Member) error {
	if err := s.joinSeeds(ctx, r); err != nil {
		return err
	}
	if s.raiseIncarnation() {
		_ = s.list.UpdateNode(s.options.Probe) // the update spreads even if this call times out
	}
	return nil
}

// raiseIncarnation raises this process's incarnation above those of the other known processes with the same name, and
// reports whether it was lower. The incarnation is initially the start time, which may be too low if the clock is
// behind. It is called once, when the process joins, so that the last of several processes with one name to join
// becomes the current one.
func (s *gossip) raiseIncarnation() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := uint64(0)
	for full, m := range s.members {
		if m.Name == s.options.Name && full != s.nodeName {
			most = max(most, m.Incarnation)
		}
	}
	if most < s.card.Incarnation || most == math.MaxUint64 {
		return false
	}
	raised := s.card
	raised.Incarnation = most + 1
	encoded, err := raised.marshal()
	if err != nil {
		return false // the larger number does not fit into the card
	}
	s.card, s.encoded = raised, encoded
	return true
}

// joinSeeds joins one of the seeds, which it obtains from r unless r is nil. It retries until ctx is done.
func (s *gossip) joinSeeds(ctx context.Context, r *rendezvous.Member) error {
	seeds := s.options.Seeds
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
		s.options.Seeds = seeds
	}
	if len(seeds) == 0 {
		return nil
	}
	said := make(chan error, 1)
	var last error
	for {
		go func() { said <- s.tryJoin(ctx, seeds) }() // a frozen seed delays this by 4 × Probe
		select {
		case last = <-said:
			if last == nil {
				return nil
			}
		case <-ctx.Done():
			return newSeedError(ctx, last)
		}
		select {
		case <-ctx.Done():
			return newSeedError(ctx, last)
		case <-time.After(s.options.Probe):
		}
	}
}

func newSeedError(ctx context.Context, last error) error {
	if last == nil {
		last = errors.New("no response yet")
	}
	return fmt.Errorf("no response from a seed: %w: last error: %w", context.Cause(ctx), last)
}

// tryJoin tries to join each seed in turn until ctx is done. It returns nil if at least one answered.
func (s *gossip) tryJoin(ctx context.Context, seeds []string) error {
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
	s.reportQueued(report)
	s.tasks.Go(func() {
		for s.ctx.Err() == nil {
			s.reportQueued(report)
			select {
			case <-s.wake:
			case <-s.ctx.Done():
			}
		}
	})
	s.tasks.Go(s.rejoinMissing)
	return nil
}

// reportQueued passes the queued members to report.
func (s *gossip) reportQueued(report func(Member)) {
	s.mu.Lock()
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, m := range queue {
		report(m)
	}
}

// rejoinMissing tries to rejoin failed members, and the seeds while no other member is known. This heals the group
// after a partition that lasted longer than memberlist remembers failed nodes.
func (s *gossip) rejoinMissing() {
	tick := time.NewTicker(rejoinInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		var missed []string
		if s.list.NumMembers() == 1 {
			missed = slices.Clone(s.options.Seeds)
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
			go func() { // a frozen member delays this by 4 × Probe
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

// maxNotified limits the number of members that Leave notifies concurrently, since notifying a frozen member is slow.
const maxNotified = 16

// waitOrDone waits for a value from c. It returns false if ctx is done first.
func waitOrDone(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}

// Leave implements Source. Before it calls memberlist's own Leave, which other members could mistake for a failure, it
// announces the departure directly to each known member and by gossip to the others.
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
	others = slices.DeleteFunc(others, func(n memberlist.Node) bool { return n.Name == s.nodeName })
	if len(others) == 0 {
		s.leaveMemberlist(ctx)
		return nil
	}
	sent := make(chan struct{})
	s.broadcasts.QueueBroadcast(&leaveBroadcast{s.nodeName, sent})
	told := make(chan struct{}, len(others))
	for i, n := range others {
		if i >= maxNotified && !waitOrDone(ctx, told) {
			break
		}
		go func() {
			_ = s.list.SendReliable(&n, []byte(s.nodeName)) // a member that this does not reach learns of it by gossip, or assumes a failure
			told <- struct{}{}
		}()
	}
	for range min(len(others), maxNotified) {
		if !waitOrDone(ctx, told) {
			break
		}
	}
	var err error
	if !waitOrDone(ctx, sent) {
		err = fmt.Errorf("leave: the announcement is still being sent: %w", context.Cause(ctx))
	}
	s.leaveMemberlist(ctx)
	return err
}

// leaveMemberlist calls memberlist's Leave, with which the others drop this process at once instead of when it no longer
// answers probes. They know already that it is leaving, so the wait is short: memberlist makes no announcement, and waits
// for it nevertheless, if it refutes a suspicion at the same moment. ctx must have a deadline.
func (s *gossip) leaveMemberlist(ctx context.Context) {
	at, _ := ctx.Deadline()
	if err := s.list.Leave(min(10*s.options.Probe, max(time.Until(at), time.Millisecond))); err != nil {
		s.options.Logger.Debug("memberlist's Leave was not confirmed", "err", err)
	}
}

// A leaveBroadcast announces a member's departure by gossip.
type leaveBroadcast struct {
	nodeName string
	sent     chan struct{} // closed after the last transmission; may be nil
}

// Message, Finished, Invalidates and UniqueBroadcast implement memberlist.UniqueBroadcast.
func (w *leaveBroadcast) Message() []byte { return []byte(w.nodeName) }
func (w *leaveBroadcast) Finished() {
	if w.sent != nil {
		close(w.sent)
	}
}
func (w *leaveBroadcast) Invalidates(memberlist.Broadcast) bool { return false }
func (w *leaveBroadcast) UniqueBroadcast()                      {}

// Close implements Source.
func (s *gossip) Close() error {
	s.stop()
	err := s.list.Shutdown()
	s.tasks.Wait()
	return err
}

// handleNode converts n to a Member, applies change to it, and queues the result for reporting.
func (s *gossip) handleNode(n *memberlist.Node, change func(m *Member)) {
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
	s.queueMemberLocked(n.Name, m)
}

// queueMemberLocked queues m. If m has failed or left, it also queues the other processes with m's name, because one of
// them is now current. s.mu must be held.
func (s *gossip) queueMemberLocked(full string, m Member) {
	s.members[full] = m
	s.queue = append(s.queue, m) // report does not block, so the queue stays short
	if !m.isLive() {
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

// NotifyAlive implements memberlist.AliveDelegate. It rejects nodes without a valid card.
func (s *gossip) NotifyAlive(n *memberlist.Node) error {
	var c card
	if err := msgpack.Unmarshal(n.Meta, &c); err != nil {
		return fmt.Errorf("not a member of a Quicksilver group: %w", err)
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (s *gossip) NotifyJoin(n *memberlist.Node) {
	s.handleNode(n, func(m *Member) {
		m.State = Alive
		delete(s.missed, n.Name)
	})
}

// NotifyUpdate implements memberlist.EventDelegate.
func (s *gossip) NotifyUpdate(n *memberlist.Node) { s.handleNode(n, func(*Member) {}) }

// NotifyLeave implements memberlist.EventDelegate.
func (s *gossip) NotifyLeave(n *memberlist.Node) {
	s.handleNode(n, func(m *Member) {
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
		s.queueMemberLocked(n.Name, m)
	}
}

// handleSuspect marks the member with the given node name as suspected, because it has not answered a probe.
func (s *gossip) handleSuspect(full string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.members[full]; ok && m.State == Alive {
		m.State = Suspected
		s.queueMemberLocked(full, m)
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

// NotifyMsg implements memberlist.Delegate. The message announces that a member is leaving; a new message is broadcast
// again.
func (s *gossip) NotifyMsg(name []byte) {
	if len(name) > maxNodeName {
		return
	}
	full := string(name)
	s.mu.Lock()
	isKnown := s.leaving[full]
	if len(s.leaving) >= maxLeaving {
		clear(s.leaving)
	}
	s.leaving[full] = true
	s.mu.Unlock()
	if !isKnown {
		s.broadcasts.QueueBroadcast(&leaveBroadcast{nodeName: full})
	}
}

// GetBroadcasts implements memberlist.Delegate. It returns the messages to forward.
func (s *gossip) GetBroadcasts(overhead, limit int) [][]byte {
	return s.broadcasts.GetBroadcasts(overhead, limit)
}

// LocalState and MergeRemoteState implement memberlist.Delegate.
func (s *gossip) LocalState(bool) []byte        { return nil }
func (s *gossip) MergeRemoteState([]byte, bool) {}

// newLogger returns memberlist's logger. Memberlist reports suspicions only in its log.
func (s *gossip) newLogger() *log.Logger { return log.New(logWriter{s}, "", 0) }

type logWriter struct{ s *gossip }

// Write implements io.Writer.
func (w logWriter) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	level, rest, _ := strings.Cut(text, " memberlist: ")
	if name, ok := strings.CutPrefix(rest, "Suspect "); ok {
		name, _, _ = strings.Cut(name, " has failed")
		w.s.handleSuspect(name)
	}
	switch level {
	case "[ERR]":
		w.s.options.Logger.Error("memberlist: " + rest)
	case "[WARN]":
		w.s.options.Logger.Warn("memberlist: " + rest)
	default:
		w.s.options.Logger.Debug("memberlist: " + rest)
	}
	return len(line), nil
}
