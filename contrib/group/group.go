package group

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A Source finds the members of a group. Join uses one over memberlist; a test may have its own.
type Source interface {
	// Watch calls report with each current member, this process among them, and then with each member that has changed, until Close. It
	// does not block. report does not block; it is called by one goroutine at a time (in the simulator, from coroutines).
	Watch(report func(Member)) error
	// Leave announces to the other members that this process leaves. It blocks until they have received that, or ctx ends.
	Leave(ctx context.Context) error
	Close() error
}

// A Group is a process's view of the members. Its methods may be called from any goroutine.
type Group struct {
	node   *qs.Node
	name   string
	source Source
	view   atomic.Pointer[View]
	closed atomic.Bool

	mu    sync.Mutex // guards the fields below
	known map[string]Member
	subs  []*subscriber
}

// maxKnown bounds the members that are remembered after they have failed or left.
const maxKnown = 16 << 10

// Over returns the group of a source, for the process of node, whose member name is name.
func Over(node *qs.Node, name string, s Source) (*Group, error) {
	g := &Group{node: node, name: name, source: s, known: map[string]Member{}}
	g.view.Store(&View{})
	if err := s.Watch(g.applyReport); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	return g, nil
}

// View returns the current members. It does not block.
func (g *Group) View() *View { return g.view.Load() }

// Self returns the name of this process.
func (g *Group) Self() string { return g.name }

// Leave announces to the other members that this process leaves, blocks until they have received that or ctx ends, and closes g. The error
// matches ErrClosed when g has been closed, or is leaving already.
func (g *Group) Leave(ctx context.Context) error {
	if g.closed.Swap(true) {
		return hg.Errorf(hg.ErrClosed, "group: leave: %s has left, or the group is closed", g.name)
	}
	return errors.Join(g.source.Leave(ctx), g.source.Close())
}

// Close closes g without an announcement, so that the other members detect a failure. The Node
// stays open. After Leave it has no effect.
func (g *Group) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	return g.source.Close()
}

// applyReport applies a report of the source about one member.
func (g *Group) applyReport(m Member) {
	g.mu.Lock()
	was, known := g.known[m.Name]
	kinds := changesOf(&was, known, &m)
	if len(kinds) > 0 {
		g.known[m.Name] = m
		g.updateViewLocked(m)
	}
	lost := ""
	for _, k := range kinds {
		e := Event{k, m, g.View().Epoch}
		if k == Fails {
			if known && was.Incarnation != m.Incarnation {
				e.Member = was
				e.Member.State = Failed
			}
			lost = e.Member.Addr
		}
		for _, s := range g.subs {
			s.addEvent(e)
		}
	}
	if lost != "" && slices.ContainsFunc(g.View().Members, func(o Member) bool { return o.Addr == lost }) {
		lost = "" // it is the address of another process of the name; or the member claimed the address of another member
	}
	g.mu.Unlock()
	if lost != "" && m.Name != g.name {
		g.cutCalls(lost, m.Name)
	}
}

// changesOf returns the kinds of events when a member changes from was, if it is known, to m.
func changesOf(was *Member, known bool, m *Member) []Kind {
	other := known && was.Incarnation != m.Incarnation
	switch {
	case !known:
		if !m.isLive() {
			return nil
		}
		if m.State == Suspected {
			return []Kind{Joined, Suspects}
		}
		return []Kind{Joined}
	case was.isLive() && m.isLive() && other:
		if m.Incarnation < was.Incarnation {
			return nil
		}
		return []Kind{Fails, Back} // its process was replaced before it was suspected
	case was.isLive() && other, !was.isLive() && !m.isLive(): // the end of a process that was replaced, or is known to have ended
		return nil
	case !was.isLive():
		return []Kind{Back}
	case m.State == Failed:
		return []Kind{Fails}
	case m.State == Left:
		return []Kind{Leaves}
	}
	var kinds []Kind
	if !m.isSame(was) {
		kinds = append(kinds, Changed)
	}
	switch {
	case m.State == was.State:
	case m.State == Suspected:
		kinds = append(kinds, Suspects)
	default:
		kinds = append(kinds, Back)
	}
	return kinds
}

// updateViewLocked stores the next view, in which only m differs.
func (g *Group) updateViewLocked(m Member) {
	last := g.View()
	i, found := last.findIndex(m.Name)
	v := &View{Epoch: last.Epoch + 1, Members: append(make([]Member, 0, len(last.Members)+1), last.Members[:i]...)}
	if m.isLive() {
		v.Members = append(v.Members, m)
	}
	if found {
		i++
	}
	v.Members = append(v.Members, last.Members[i:]...)
	g.view.Store(v)
	if len(g.known) > maxKnown {
		maps.DeleteFunc(g.known, func(_ string, m Member) bool { return !m.isLive() })
	}
}

// cutCalls ends the calls to the address of a member that has failed.
func (g *Group) cutCalls(addr, name string) {
	why := fmt.Errorf("member %s of the group has failed", name)
	if a, err := hg.ParseAddr(addr); err == nil {
		g.disconnectAddr(a, why)
		return
	}
	g.node.HG().NA().Spawn(func() {
		ctx, stop := g.node.HG().NA().WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		if a, err := g.node.HG().LookupWait(ctx, addr); err == nil {
			g.disconnectAddr(a, why)
		}
	})
}

// disconnectAddr ends the calls and sessions of the node to an address.
func (g *Group) disconnectAddr(a hg.Addr, why error) {
	for _, hctx := range g.node.HG().Class().Contexts() {
		hctx.NA().Disconnect(a, why)
	}
}
