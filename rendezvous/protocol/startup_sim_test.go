package protocol_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/raceflag"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

var (
	strictSeeds = flag.Int("strict.seeds", long.Or(200, 1000), "seeds of TestStrictSeeds")
	nativeSeeds = flag.Int("native.seeds", long.Or(2, 20), "seeds of TestNativeSeeds")
)

// A startupSim is a server and its clients, whose bytes meet in an order, and in pieces, that a seed decides.
type startupSim struct {
	t       *testing.T
	random  *rand.Rand
	server  *protocol.Server
	cfg     protocol.ServerConfig
	clients []*protocol.Client
	up      [][]byte // by rank: on the way to the server
	down    [][]byte // by rank: on the way to the client
	sets    [][]protocol.Set
	whole   bool // pieces are all that there is
	events  []protocol.Event
}

func newStartupSim(t *testing.T, cfg protocol.ServerConfig, seed uint64) *startupSim {
	t.Helper()
	r := &startupSim{t: t, random: rand.New(rand.NewPCG(seed, 1)), cfg: cfg}
	r.cfg.Nonce = r.nonce
	s, err := protocol.NewServer(r.cfg)
	require.NoError(t, err)
	r.server = s
	r.clients = make([]*protocol.Client, cfg.Size)
	r.up, r.down, r.sets = make([][]byte, cfg.Size), make([][]byte, cfg.Size), make([][]protocol.Set, cfg.Size)
	return r
}

func (r *startupSim) nonce(b []byte) {
	for i := range b {
		b[i] = byte(r.random.Uint32())
	}
}

// joinAll lets all clients join, and returns when all have received that.
func (r *startupSim) joinAll() {
	r.t.Helper()
	for _, rank := range r.random.Perm(r.cfg.Size) {
		c, err := protocol.NewClient(protocol.ClientConfig{
			Form: r.cfg.Form, Rank: rank, Size: r.cfg.Size, Auth: r.cfg.Auth, Nonce: r.nonce,
		})
		require.NoError(r.t, err)
		r.clients[rank] = c
		r.server.Connect(rank)
	}
	r.run()
	for rank, c := range r.clients {
		require.Equal(r.t, r.cfg.Size, c.Size(), "rank %d", rank)
	}
}

// run moves bytes until there are none.
func (r *startupSim) run() {
	busy := make([]int, 0, r.cfg.Size)
	for {
		busy = busy[:0]
		for rank, c := range r.clients {
			r.takeClient(rank, c)
			if len(r.up[rank]) > 0 || len(r.down[rank]) > 0 {
				busy = append(busy, rank)
			}
		}
		if len(busy) == 0 {
			return
		}
		r.random.Shuffle(len(busy), func(i, j int) { busy[i], busy[j] = busy[j], busy[i] })
		for _, rank := range busy {
			if r.random.IntN(4) == 0 {
				continue // later
			}
			if piece := r.piece(&r.up[rank]); len(piece) > 0 {
				r.server.Receive(rank, piece)
				r.takeServer()
			}
			if piece := r.piece(&r.down[rank]); len(piece) > 0 {
				if err := r.clients[rank].Receive(piece); err != nil {
					r.t.Fatalf("rank %d: %v", rank, err)
				}
			}
		}
	}
}

// piece takes some of the bytes.
func (r *startupSim) piece(from *[]byte) []byte {
	n := len(*from)
	if n > 0 && !r.whole {
		n = min(n, 1+r.random.IntN(64))
	}
	b := (*from)[:n:n]
	*from = (*from)[n:]
	return b
}

func (r *startupSim) takeClient(rank int, c *protocol.Client) {
	out, sets := c.Take()
	r.up[rank] = append(r.up[rank], out...)
	r.sets[rank] = append(r.sets[rank], sets...)
}

func (r *startupSim) takeServer() {
	out, events := r.server.Take()
	for _, o := range out {
		r.down[o.Conn] = append(r.down[o.Conn], o.Send...)
	}
	r.events = append(r.events, events...)
}

// impiLabels are the labels that every IMPI client submits.
var impiLabels = []protocol.Label{
	0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500, 0x1600, 0x2000, 0x2100, 0x2200, 0x2300, 0x2400, 0x3000, 0x3100,
}

// startup lets all clients go through all of it, in an order of their own; some skip labels, or submit nothing.
func (r *startupSim) startup(labels []protocol.Label) {
	r.t.Helper()
	r.joinAll()
	size := r.cfg.Size
	want := map[protocol.Label][][]byte{}
	next := make([]int, size)
	for left := size; left > 0; {
		rank := r.random.IntN(size)
		switch at := next[rank]; {
		case at > len(labels):
			continue
		case at == len(labels):
			require.NoError(r.t, r.clients[rank].Done())
			left--
		case r.random.IntN(16) != 0:
			label := labels[at]
			data := []byte(fmt.Sprintf("%x/%d;", int32(label), rank))[:r.random.IntN(8)]
			if want[label] == nil {
				want[label] = make([][]byte, size)
			}
			want[label][rank] = data
			if err := r.clients[rank].Submit(label, data); err != nil {
				r.t.Fatalf("rank %d: %v", rank, err)
			}
		}
		next[rank]++
		if r.random.IntN(size) == 0 {
			r.run()
		}
	}
	r.run()
	for rank, c := range r.clients {
		require.True(r.t, c.Started(), "rank %d", rank)
		r.compare(rank, labels, want)
		require.NoError(r.t, c.Fini())
	}
	r.run()
	over, err := r.server.Over()
	require.True(r.t, over)
	require.NoError(r.t, err)
}

// compare requires that a client got exactly the submitted parts.
func (r *startupSim) compare(rank int, labels []protocol.Label, want map[protocol.Label][][]byte) {
	sets := r.sets[rank]
	for _, label := range labels {
		parts := want[label]
		if parts == nil {
			continue // it was not submitted
		}
		if len(sets) == 0 || sets[0].Label != label {
			r.t.Fatalf("rank %d: no label %v", rank, label)
		}
		set := sets[0]
		sets = sets[1:]
		for k, p := range parts {
			if set.Mask.Has(k) != (p != nil) {
				r.t.Fatalf("rank %d, label %v: got %v about rank %d", rank, label, set.Mask, k)
			}
		}
		if got, want := set.Data, bytes.Join(parts, nil); !bytes.Equal(got, want) {
			r.t.Fatalf("rank %d, label %v: got %q, want %q", rank, label, got, want)
		}
		same := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
		if r.cfg.Form == protocol.Native && !slices.EqualFunc(set.Parts(), parts, same) {
			r.t.Fatalf("rank %d, label %v: got %q, want %q", rank, label, set.Parts(), parts)
		}
	}
	require.Empty(r.t, sets)
}

func TestStrictSeeds(t *testing.T) {
	seeds := *strictSeeds
	if raceflag.Enabled { // there is one goroutine
		seeds /= 10
	}
	for seed := range seeds {
		r := newStartupSim(t, protocol.ServerConfig{Form: protocol.Strict, Size: 32, Auth: protocol.Auth{None: true, Key: key(theKey)}}, uint64(seed))
		r.startup(impiLabels)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestNativeSeeds(t *testing.T) {
	for seed := range *nativeSeeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := newStartupSim(t, protocol.ServerConfig{Size: 1024, Auth: protocol.Auth{Secret: []byte("secret")}}, uint64(seed))
			r.whole = true // of 5 MB in all, pieces of 64 bytes would be too many
			r.startup([]protocol.Label{0x10000, 0x10100, 0x10200, 0x10300})
		})
	}
}

// TestPipelined (L22, L-T24) checks that all clients may send all labels before any of them reads.
func TestPipelined(t *testing.T) {
	r := newStartupSim(t, protocol.ServerConfig{Form: protocol.Strict, Size: 3, Auth: open}, 1)
	r.whole = true
	r.joinAll()
	part := make([]byte, 64<<10)
	for _, c := range r.clients {
		for _, label := range impiLabels {
			require.NoError(t, c.Submit(label, part))
		}
		require.NoError(t, c.Done())
	}
	r.run()
	for rank, sets := range r.sets {
		require.True(t, r.clients[rank].Started())
		require.Len(t, sets, len(impiLabels))
		for _, s := range sets {
			require.Len(t, s.Data, 3*len(part))
		}
	}
}

// TestLockStep (L-T39) checks a client that waits for each label before it sends the next, beside
// one that skips most of them.
func TestLockStep(t *testing.T) {
	r := newStartupSim(t, protocol.ServerConfig{Form: protocol.Strict, Size: 2, Auth: open}, 1)
	r.joinAll()
	require.NoError(t, r.clients[1].Submit(0x1600, nil))
	for i, label := range impiLabels {
		require.NoError(t, r.clients[0].Submit(label, []byte("x")))
		if label == 0x1600 {
			require.NoError(t, r.clients[1].Done())
		}
		r.run()
		require.Len(t, r.sets[0], i+1)
		require.Equal(t, label, r.sets[0][i].Label)
	}
	require.NoError(t, r.clients[0].Done())
	r.run()
	require.True(t, r.clients[0].Started())
	require.True(t, r.clients[1].Started())
}
