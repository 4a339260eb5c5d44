package group

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Owners returns the n names that own a key, the first owner first; all names if there are no more. It is rendezvous hashing: each name
// has a weight for each key, and the largest own it, so a name that is added or removed moves only the keys that it owns. It is the
// same in every process and version.
func Owners(names []string, key string, n int) []string {
	type weighed struct {
		name   string
		weight uint64
	}
	all := make([]weighed, len(names))
	k := mix(hash(key))
	for i, name := range names {
		all[i] = weighed{name, mix(k ^ hash(name))}
	}
	slices.SortFunc(all, func(a, b weighed) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.name, b.name))
	})
	owners := make([]string, 0, min(max(n, 0), len(all)))
	for _, w := range all[:cap(owners)] {
		owners = append(owners, w.name)
	}
	return owners
}

// Owners returns the n members of v that own a key, as Owners of their names does.
func (v *View) Owners(key string, n int) []Member {
	names := make([]string, len(v.Members))
	for i := range v.Members {
		names[i] = v.Members[i].Name
	}
	owners := make([]Member, 0, min(max(n, 0), len(names)))
	for _, name := range Owners(names, key, n) {
		m, _ := v.Find(name)
		owners = append(owners, m)
	}
	return owners
}

// ByKey returns a Balancer that sends a call to the first owner of its key that does not fail. key is called under a lock, with nil
// when Peer.Addr asks: it is quick.
func (g *Group) ByKey(key func(*qs.Call) string) qs.Balancer {
	return &byKey{g: g, key: key}
}

type byKey struct {
	g     *Group
	key   func(*qs.Call) string
	names atomic.Pointer[namesByAddr] // of the view that Pick has seen last
}

// namesByAddr are the names of the members of a view: of several with one address, the first.
type namesByAddr struct {
	view  *View
	names map[string]string
}

// namesOf returns the names of a view, which are the same for all calls until there is another view.
func (p *byKey) namesOf(v *View) map[string]string {
	if last := p.names.Load(); last != nil && last.view == v {
		return last.names
	}
	names := make(map[string]string, len(v.Members))
	for _, m := range v.Members {
		if _, taken := names[m.Addr]; !taken {
			names[m.Addr] = m.Name
		}
	}
	p.names.Store(&namesByAddr{v, names})
	return names
}

// Pick implements qs.Balancer.
func (p *byKey) Pick(c *qs.Call, ts []qs.Candidate) int {
	k, names := mix(hash(p.key(c))), p.namesOf(p.g.View())
	best, most := -1, uint64(0)
	for i, t := range ts {
		text := t.Addr.String()
		name, ok := names[text]
		if !ok {
			name = text
		}
		if weight := mix(k ^ hash(name)); !t.Failing && (best < 0 || weight > most) {
			best, most = i, weight
		}
	}
	return best
}

// hash is FNV-1a.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix has every bit of h depend on all others: the finish of SplitMix64.
func mix(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
