package protocol_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/beginnings"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// heapGrowth is what is on the heap after f has run, beyond what was there before; f returns what must stay alive.
func heapGrowth(f func() any) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	keep := f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(keep)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// TestMemoryFollowsBytes (L5, L28, L-T22) checks that an announced length costs nothing, and an
// unknown client no more than a few dozen bytes and the table entry.
func TestMemoryFollowsBytes(t *testing.T) {
	const strangers = 1000
	got := heapGrowth(func() any {
		b := newServerTest(t, protocol.ServerConfig{Form: protocol.Strict, Size: 1, Auth: open, Pending: strangers})
		for range strangers {
			b.connect(join([]byte("COLL"), i32(64)), make([]byte, 63))
		}
		return b
	})
	require.Less(t, got, int64(strangers*1024))

	got = heapGrowth(func() any {
		b := newStrictTest(t, 2)
		ids := b.joinClients(2)
		b.send(ids[0], join([]byte("COLL"), i32(1<<20+4, 7)))
		require.Empty(t, b.closed[ids[0]])
		return b
	})
	require.Less(t, got, int64(64<<10))

	got = heapGrowth(func() any {
		c := joinedClient(t, protocol.Native, 0, 2)
		require.NoError(t, c.Receive(join([]byte("COLL"), i32(32<<20), i32(7))))
		return c
	})
	require.Less(t, got, int64(64<<10))
}

// play gives every byte of script to a server as one of four connections, or as another event.
func play(s *protocol.Server, script []byte) {
	ids := [4]int{0, 1, 2, 3}
	last := 3
	for _, id := range ids {
		s.Connect(id)
	}
	for len(script) > 1 {
		slot, n := int(script[0]&3), int(script[0]>>2)&31
		switch script[0] >> 7 {
		case 0:
			n = min(n+1, len(script)-1)
			s.Receive(ids[slot], script[1:1+n])
			script = script[1+n:]
		default:
			switch {
			case n < 4:
				s.Lost(ids[slot], errors.New("lost"))
			case n == 4:
				s.Expire()
			}
			script = script[1:]
		}
		out, _ := s.Take()
		for _, o := range out {
			if i := slices.Index(ids[:], o.Conn); o.Close && i >= 0 {
				last++
				ids[i] = last
				s.Connect(last)
			}
		}
	}
}

// script writes a word as play reads it.
func script(id byte, words ...[]byte) (s []byte) {
	for b := join(words...); len(b) > 0; {
		n := min(len(b), 32)
		s = append(append(s, id|byte(n-1)<<2), b[:n]...)
		b = b[n:]
	}
	return s
}

func FuzzServer(f *testing.F) {
	beginnings.Seed(f, script(0, rank(0), coll(7, 'a'), command("DONE")))
	beginnings.Seed(f, join(script(0, command("AUTH", i32(3)), rank(0)), script(1, rank(1)), script(0, coll(7, 'a')), script(1, coll(9)),
		script(1, command("DONE")), script(0, command("DONE"), command("FINI"))))
	beginnings.Seed(f, join(script(0, command("AUTH", i32(7)), make([]byte, 64)), script(1, command("JOIN", i32(1, 1, 2)))))
	beginnings.Seed(f, join(script(0, command("JOIN", i32(1, 0, 2))), script(1, command("JOIN", i32(1, 1, 2)), command("\xd7HAT")),
		script(0, coll(0x10000, 'a')), script(1, coll(0x10100, 'b')), []byte{0x80 | 4<<2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, cfg := range []protocol.ServerConfig{
			{Form: protocol.Strict, Auth: open},
			{Form: protocol.Native, Auth: open},
			{Form: protocol.Native, Auth: protocol.Auth{Secret: []byte("secret")}, Nonce: func([]byte) {}},
		} {
			cfg.Size = 2
			cfg.Limits = protocol.Limits{Part: 16, Set: 24, Labels: 4, Total: 1024}
			s, err := protocol.NewServer(cfg)
			require.NoError(t, err)
			play(s, b)
		}
	})
}

func FuzzClient(f *testing.F) {
	f.Add(true, join(i32(0, 0), command("IMPI", i32(2)), set(7, 3, "ab"), command("DONE")))
	f.Add(false, join(i32(0, 0), command("JOIN", i32(2)), command("COLL", i32(7, 3, 1, 1), []byte("ab")), command("DONE")))
	f.Add(false, join(i32(2, 64), make([]byte, 64), command("ABRT", i32(1), []byte("why"))))
	f.Fuzz(func(t *testing.T, strict bool, b []byte) {
		cfg := protocol.ClientConfig{
			Auth: protocol.Auth{None: true, Secret: []byte("secret")}, Nonce: func([]byte) {}, Limits: protocol.Limits{Set: 1024},
		}
		if strict {
			cfg.Form = protocol.Strict
		}
		// In one piece, and byte by byte: the outcome is the same.
		var outcome [2]string
		for i := range outcome {
			c, err := protocol.NewClient(cfg)
			require.NoError(t, err)
			var sets []protocol.Set
			take := func() {
				_, s := c.Take()
				sets = append(sets, s...)
				if c.Size() > 0 && c.Submit(7, []byte("a")) == nil {
					_ = c.Done()
				}
			}
			if i == 0 {
				_ = c.Receive(b[:min(len(b), 20)])
				take()
				_ = c.Receive(b[min(len(b), 20):])
				take()
			} else {
				for at := range b {
					_ = c.Receive(b[at : at+1])
					if at == 19 {
						take()
					}
				}
				take()
			}
			for _, s := range sets {
				require.LessOrEqual(t, len(s.Data), 1024)
				outcome[i] += s.Label.String() + string(s.Data)
			}
		}
		require.Equal(t, outcome[0], outcome[1])
	})
}
