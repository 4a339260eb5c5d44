package group

import (
	"cmp"
	"slices"

	"github.com/quicksilver-rpc/quicksilver"
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

// ByKey returns a Pick that sends a call to the first owner of its key that does not fail. key is called under a lock, with nil
// when Peer.Addr asks: it is quick.
func (g *Group) ByKey(key func(*quicksilver.Call) string) quicksilver.Pick { return byKey{g, key} }

type byKey struct {
	g   *Group
	key func(*quicksilver.Call) string
}

// Pick implements quicksilver.Pick.
func (p byKey) Pick(c *quicksilver.Call, ts []quicksilver.Target) int {
	k, v := mix(hash(p.key(c))), p.g.View()
	best, most := -1, uint64(0)
	for i, t := range ts {
		text := t.Addr.String()
		name, ok := v.names[text]
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
