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

// A Source finds out who is a member. Join has memberlist as one; a test may have its own.
type Source interface {
	// Watch calls report with each member that is there, this process among them, and then whenever something about one has changed,
	// with all that is known of it, until Close. It returns at once. report does not block; it is called from anywhere, by one
	// goroutine at a time (in the simulator, from coroutines).
	Watch(report func(Member)) error
	// Leave says to the others that this process leaves, and waits until ctx ends for them to know.
	Leave(ctx context.Context) error
	Close() error
}

// A Group is what a process knows of the members. Its methods may be called from any goroutine.
type Group struct {
	node   *qs.Node
	name   string
	source Source
	view   atomic.Pointer[View]
	closed atomic.Bool

	mu    sync.Mutex // guards the fields below
	known map[string]Member
	subs  []*sub
}

// maxKnown bounds the members that are kept in mind after they have failed or left.
const maxKnown = 16 << 10

// Over returns the group that a source knows, for the process of node, which is called name.
func Over(node *qs.Node, name string, s Source) (*Group, error) {
	g := &Group{node: node, name: name, source: s, known: map[string]Member{}}
	g.view.Store(&View{})
	if err := s.Watch(g.report); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	return g, nil
}

// View returns the members that are there now.
func (g *Group) View() *View { return g.view.Load() }

// Self returns the name of this process.
func (g *Group) Self() string { return g.name }

// Leave tells the others that this process leaves, waits until they know or ctx ends, and closes g. The error matches ErrClosed when g
// has been closed, or is leaving already.
func (g *Group) Leave(ctx context.Context) error {
	if g.closed.Swap(true) {
		return hg.Errorf(hg.ErrClosed, "group: leave: %s has left, or its group is closed", g.name)
	}
	return errors.Join(g.source.Leave(ctx), g.source.Close())
}

// Close ends g without a word to the others: for them it will have failed. The Node goes on. After Leave it does nothing.
func (g *Group) Close() error {
	if g.closed.Swap(true) {
		return nil
	}
	return g.source.Close()
}

// report takes in what the source says of one member.
func (g *Group) report(m Member) {
	g.mu.Lock()
	was, known := g.known[m.Name]
	kinds := changes(&was, known, &m)
	if len(kinds) > 0 {
		g.known[m.Name] = m
		g.renew(m)
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
			s.add(e)
		}
	}
	if lost != "" && slices.ContainsFunc(g.View().Members, func(o Member) bool { return o.Addr == lost }) {
		lost = "" // it is that of another process of the name; or the member lied, and it is somebody else's
	}
	g.mu.Unlock()
	if lost != "" && m.Name != g.name {
		g.cut(lost, m.Name)
	}
}

// changes returns what it means when a member of which was is known becomes m.
func changes(was *Member, known bool, m *Member) []Kind {
	other := known && was.Incarnation != m.Incarnation
	switch {
	case !known:
		if !m.live() {
			return nil
		}
		if m.State == Suspected {
			return []Kind{Joined, Suspects}
		}
		return []Kind{Joined}
	case was.live() && m.live() && other:
		if m.Incarnation < was.Incarnation {
			return nil
		}
		return []Kind{Fails, Back} // its process was replaced before anybody missed it
	case was.live() && other, !was.live() && !m.live(): // the end of a process that was replaced, or is known to have ended
		return nil
	case !was.live():
		return []Kind{Back}
	case m.State == Failed:
		return []Kind{Fails}
	case m.State == Left:
		return []Kind{Leaves}
	}
	var kinds []Kind
	if !m.same(was) {
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

// renew makes the next view, in which only m is another. Locked.
func (g *Group) renew(m Member) {
	last := g.View()
	i, found := last.search(m.Name)
	v := &View{Epoch: last.Epoch + 1, Members: append(make([]Member, 0, len(last.Members)+1), last.Members[:i]...)}
	if m.live() {
		v.Members = append(v.Members, m)
	}
	if found {
		i++
	}
	v.Members = append(v.Members, last.Members[i:]...)
	g.view.Store(v)
	if len(g.known) > maxKnown {
		maps.DeleteFunc(g.known, func(_ string, m Member) bool { return !m.live() })
	}
}

// cut ends the calls to an address.
func (g *Group) cut(addr, name string) {
	why := fmt.Errorf("the group says that %s has failed", name)
	if a, err := hg.ParseAddr(addr); err == nil {
		g.disconnect(a, why)
		return
	}
	g.node.HG().NA().Spawn(func() {
		ctx, stop := g.node.HG().NA().WithTimeout(context.Background(), 5*time.Second)
		defer stop()
		if a, err := g.node.HG().LookupWait(ctx, addr); err == nil {
			g.disconnect(a, why)
		}
	})
}

// disconnect ends what the node has under way to an address.
func (g *Group) disconnect(a hg.Addr, why error) {
	for _, hctx := range g.node.HG().Class().Contexts() {
		hctx.NA().Disconnect(a, why)
	}
}
