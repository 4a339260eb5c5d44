package na

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

func TestIDTableOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var table idTable
	alive := map[uint64]*Op{}
	var ids, dead []uint64
	for range long.Or(5000, 20_000) {
		switch {
		case len(ids) == 0 || r.IntN(2) == 0:
			o := &Op{}
			id := table.add(o)
			require.NotZero(t, id, "0 means none")
			require.NotContains(t, alive, id)
			alive[id] = o
			ids = append(ids, id)
		default:
			i := r.IntN(len(ids))
			id := ids[i]
			table.remove(id)
			delete(alive, id)
			ids[i] = ids[len(ids)-1]
			ids = ids[:len(ids)-1]
			dead = append(dead, id)
		}
		if len(dead) > 0 {
			old := dead[r.IntN(len(dead))]
			require.Nil(t, table.get(old), "a late answer meets a dead generation")
			table.remove(old) // harmless
		}
		if len(ids) > 0 {
			id := ids[r.IntN(len(ids))]
			require.Same(t, alive[id], table.get(id))
		}
		require.Nil(t, table.get(r.Uint64()))
		require.Nil(t, table.get(uint64(r.Uint32())), "generation 0")
	}
	require.Less(t, len(table.slots), 1000, "slots are used again")
}

// TestIDTableWraps checks that a slot whose generations are used up is never used again: its first
// identity would repeat.
func TestIDTableWraps(t *testing.T) {
	var table idTable
	first := table.add(&Op{})
	table.remove(first)
	table.slots[0].gen = 1<<32 - 1
	last := table.add(&Op{})
	require.Equal(t, uint64(0xffffffff)<<32, last)
	table.remove(last)
	next := table.add(&Op{})
	require.EqualValues(t, 1, uint32(next), "another slot")
	require.Nil(t, table.get(0))
	require.Nil(t, table.get(first))
}

// TestTagTableOracle checks that receives are found by tags that differ in a few of their bits,
// whichever these are.
func TestTagTableOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for shift := 0; shift < 56; shift += 7 {
		var table postedTable
		alive := map[Tag]*Op{}
		require.Nil(t, table.find(0))
		for range long.Or(2000, 20_000) {
			tag := Tag(r.IntN(256)) << shift
			if o := alive[tag]; o == nil {
				o = &Op{endpointState: endpointState{tag: tag}}
				table.add(o)
				alive[tag] = o
			} else {
				table.remove(o)
				delete(alive, tag)
			}
			tag = Tag(r.IntN(256)) << shift
			require.Equal(t, alive[tag], table.find(tag))
		}
		longest := 0
		for _, o := range table.rows {
			n := 0
			for ; o != nil; o = o.hashNext {
				n++
			}
			longest = max(longest, n)
		}
		require.LessOrEqual(t, longest, 16, "in a row, of tags shifted by %d", shift)
	}
}

func TestOpListOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var lists [3]opList
	var want [3][]*Op
	for range long.Or(5000, 20_000) {
		i := r.IntN(3)
		q, w := &lists[i], want[i]
		switch r.IntN(4) {
		case 0, 1:
			o := &Op{}
			q.push(o)
			want[i] = append(w, o)
		case 2:
			o := q.pop()
			if len(w) == 0 {
				require.Nil(t, o)
				break
			}
			require.Same(t, w[0], o)
			require.Nil(t, o.list)
			want[i] = w[1:]
		case 3:
			if len(w) == 0 {
				break
			}
			k := r.IntN(len(w))
			q.remove(w[k])
			require.Nil(t, w[k].list)
			want[i] = append(append([]*Op{}, w[:k]...), w[k+1:]...)
		}
		require.Equal(t, len(want[i]), q.n)
		o := q.head
		for _, x := range want[i] {
			require.Same(t, x, o)
			require.Same(t, q, o.list)
			o = o.next
		}
		require.Nil(t, o)
		if n := len(want[i]); n > 0 {
			require.Same(t, want[i][n-1], q.tail)
		} else {
			require.Nil(t, q.tail)
		}
	}
}
