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

// A Source discovers the members of a group. Join uses one based on memberlist; tests may provide their own.
type Source interface {
	// Watch calls report with each current member, including this process, and then with each member that changes,
	// until Close is called. It does not block. The report function does not block either, and is called by one
	// goroutine at a time (in the simulator, from coroutines).
	Watch(report func(Member)) error
	// Leave announces to the other members that this process is leaving. It blocks until they have received the
	// announcement or ctx is done.
	Leave(ctx context.Context) error
	Close() error
}

// A Group is one process's view of the members. Its methods are safe for concurrent use.
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

// maxKnown limits the number of members that are remembered after they failed or left.
const maxKnown = 16 << 10

// Over returns a Group for the process that owns node, with the members that s reports. The process's member name is
// name.
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

// Self returns the member name of this process.
func (g *Group) Self() string { return g.name }

// Leave announces to the other members that this process is leaving, blocks until they have received the announcement
// or ctx is done, and closes g. If g is already closed or leaving, the error matches ErrClosed.
func (g *Group) Leave(ctx context.Context) error {
	if g.closed.Swap(true) {
		return hg.Errorf(hg.ErrClosed, "group: leave: %s has left, or the group is closed", g.name)
	}
	return errors.Join(g.source.Leave(ctx), g.source.Close())
}

// Close closes g without an announcement, so that the other members detect a failure. It does not close the Node. After
// Leave it has no effect.
func (g *Group) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	return g.source.Close()
}

// applyReport updates the view for a change of member m that the source has reported, and sends the resulting events.
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
		lost = "" // the address is in use by another process with the name, or belongs to another member
	}
	g.mu.Unlock()
	if lost != "" && m.Name != g.name {
		g.cutCalls(lost, m.Name)
	}
}

// changesOf returns the kinds of the events for a change of a member from was to m. known is false if the member is
// new, in which case was is not used.
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
	case was.isLive() && other, !was.isLive() && !m.isLive(): // a process has ended that was replaced, or that was already known to have ended
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

// updateViewLocked stores the next view, which differs from the current one only in m. g.mu must be held.
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

// cutCalls ends the calls to the address of a failed member.
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

// disconnectAddr ends the node's calls to an address and its sessions there.
func (g *Group) disconnectAddr(a hg.Addr, why error) {
	for _, hctx := range g.node.HG().Class().Contexts() {
		hctx.NA().Disconnect(a, why)
	}
}
