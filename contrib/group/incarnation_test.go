package group

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"
)

// TestNextProcessOfName checks that when the process that holds a name has failed, another
// process of the name that is alive becomes the member.
func TestNextProcessOfName(t *testing.T) {
	g := &Group{name: "client", known: map[string]Member{}}
	g.view.Store(&View{})
	s := newGossip(&Options{Name: "client"}, 1)
	node := func(start string, incarnation uint64) *memberlist.Node {
		c := card{Addr: "tcp://h:" + start, Incarnation: incarnation}
		b, err := c.marshal()
		require.NoError(t, err)
		return &memberlist.Node{Name: "d#" + start, Addr: net.IPv4(127, 0, 0, 1), Meta: b}
	}
	counts := func() string {
		s.reportQueued(g.applyReport)
		m, _ := g.View().Find("d")
		return m.Addr
	}
	s.NotifyJoin(node("5", 50))
	require.Equal(t, "tcp://h:5", counts())
	s.NotifyJoin(node("4", 40))
	require.Equal(t, "tcp://h:5", counts())
	s.NotifyJoin(node("3", 30))
	g.name = "d" // whose own calls are not ended
	s.NotifyLeave(node("5", 50))
	require.Equal(t, "tcp://h:4", counts())
	s.NotifyUpdate(node("3", 60))
	require.Equal(t, "tcp://h:3", counts(), "it was raised")
	s.NotifyLeave(node("4", 40))
	require.Equal(t, "tcp://h:3", counts())
	s.NotifyLeave(node("3", 60))
	require.Empty(t, counts())
}

// TestViewIncremental checks that a view that is derived from the one before equals a view that
// is built anew.
func TestViewIncremental(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	g := &Group{name: "m0", known: map[string]Member{}}
	g.view.Store(&View{})
	for range 2000 {
		m := Member{Name: fmt.Sprint("m", random.IntN(20)), Incarnation: random.Uint64N(3), State: State(random.IntN(4))}
		before := g.View()
		held := slices.Clone(before.Members)
		g.applyReport(m)
		var want []Member
		for _, name := range slices.Sorted(maps.Keys(g.known)) {
			if m := g.known[name]; m.isLive() {
				want = append(want, m)
			}
		}
		require.Equal(t, want, slices.Clip(append([]Member(nil), g.View().Members...)))
		require.Equal(t, held, before.Members, "a view does not change")
	}
}

// TestRaise checks that an incarnation is raised only above those of its own name, and only if
// there is a higher number.
func TestRaise(t *testing.T) {
	for others, want := range map[[3]uint64]uint64{
		{1, 2, 3}:           10,
		{1, 10, 3}:          11,
		{30, 10, 20}:        31,
		{30, 1<<64 - 1, 20}: 10,
		{1<<64 - 2, 1, 20}:  1<<64 - 1,
	} {
		s := newGossip(&Options{Name: "d"}, 10)
		s.members["e#1"] = Member{Name: "e", Incarnation: 1000}
		s.members[s.nodeName] = Member{Name: "d", Incarnation: 10}
		for i, o := range others {
			s.members[string(rune('a'+i))] = Member{Name: "d", Incarnation: o}
		}
		require.Equal(t, want != 10, s.raiseIncarnation())
		require.Equal(t, want, s.card.Incarnation)
	}
}
