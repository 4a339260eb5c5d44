package group

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Owners returns the n names that own key, starting with the first owner. It returns all names if there are no more
// than n.
//
// It uses rendezvous hashing: each name has a weight for each key, and the names with the largest weights own the key.
// Adding or removing a name therefore moves only the keys that this name owns. The result is the same in every process
// and every version of this package.
func Owners(names []string, key string, n int) []string {
	type weighed struct {
		name   string
		weight uint64
	}
	all := make([]weighed, len(names))
	k := mixBits(hashFNV(key))
	for i, name := range names {
		all[i] = weighed{name, mixBits(k ^ hashFNV(name))}
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

// Owners returns the n members of v that own key, as determined by the function Owners for their names.
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

// ByKey returns a Balancer that sends a call to the first owner of its key that is not failing. The key function is
// called with a lock held and must not block. Peer.Addr calls it with nil.
func (g *Group) ByKey(key func(*qs.Call) string) qs.Balancer {
	return &keyBalancer{group: g, key: key}
}

type keyBalancer struct {
	group *Group
	key   func(*qs.Call) string
	names atomic.Pointer[viewNames] // names of the view used by the last Pick
}

// viewNames maps the addresses of a view's members to their names. If several members share an address, it holds the
// first.
type viewNames struct {
	view  *View
	names map[string]string
}

// namesOfView returns the names of v's members by address. It caches the result until it is called with another view.
func (p *keyBalancer) namesOfView(v *View) map[string]string {
	if last := p.names.Load(); last != nil && last.view == v {
		return last.names
	}
	names := make(map[string]string, len(v.Members))
	for _, m := range v.Members {
		if _, taken := names[m.Addr]; !taken {
			names[m.Addr] = m.Name
		}
	}
	p.names.Store(&viewNames{v, names})
	return names
}

// Pick implements qs.Balancer.
func (p *keyBalancer) Pick(c *qs.Call, ts []qs.Candidate) int {
	k, names := mixBits(hashFNV(p.key(c))), p.namesOfView(p.group.View())
	best, most := -1, uint64(0)
	for i, t := range ts {
		text := t.Addr.String()
		name, ok := names[text]
		if !ok {
			name = text
		}
		if weight := mixBits(k ^ hashFNV(name)); !t.Failing && (best < 0 || weight > most) {
			best, most = i, weight
		}
	}
	return best
}

// hashFNV returns the FNV-1a hash of s.
func hashFNV(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mixBits makes every bit of the result depend on all bits of h. It is the finalizer of SplitMix64.
func mixBits(h uint64) uint64 {
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
