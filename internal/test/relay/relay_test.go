package relay

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestLatency checks that every datagram is delayed by the requested time, those that others
// overtake, and copies, too.
func TestLatency(t *testing.T) {
	t.Parallel()
	target, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer target.Close()
	r, err := New(target.LocalAddr().(*net.UDPAddr).AddrPort(), Rules{Latency: 50 * time.Millisecond, Delay: 0.3, Repeat: 0.3, Seed: 5})
	require.NoError(t, err)
	defer r.Close()
	peer, err := net.Dial("udp4", r.Addr().String())
	require.NoError(t, err)
	defer peer.Close()
	begun := time.Now()
	for i := range 50 {
		_, err = peer.Write([]byte{byte(i)})
		require.NoError(t, err)
	}
	got := map[byte]bool{}
	_ = target.SetReadDeadline(begun.Add(20 * time.Second))
	for b := make([]byte, 8); len(got) < 50; got[b[0]] = true {
		_, _, err = target.ReadFromUDPAddrPort(b)
		require.NoError(t, err, "%d of 50 have arrived", len(got))
		require.GreaterOrEqual(t, time.Since(begun), 50*time.Millisecond)
	}
}

// TestRules checks that of a thousand datagrams about the requested numbers are lost, repeated,
// damaged and delayed, in both directions, and the others arrive unchanged.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rules Rules
		holds func(got map[int]int, order []int) int // to how many it has happened
	}{
		{Rules{Lose: 0.2, Seed: 1}, func(got map[int]int, _ []int) int { return 1000 - len(got) }},
		{Rules{Repeat: 0.2, Seed: 2}, func(got map[int]int, _ []int) (n int) {
			for _, times := range got {
				n += times - 1
			}
			return n
		}},
		{Rules{Damage: 0.2, Seed: 3}, func(got map[int]int, _ []int) int { return 1000 - len(got) }},
		{Rules{Delay: 0.2, Seed: 4}, func(got map[int]int, order []int) (n int) {
			require.Len(t, got, 1000)
			for i := range order[1:] {
				if order[i+1] < order[i] {
					n++
				}
			}
			return n
		}},
	} {
		t.Run(fmt.Sprintf("%+v", c.rules), func(t *testing.T) {
			t.Parallel()
			target, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			r, err := New(target.LocalAddr().(*net.UDPAddr).AddrPort(), c.rules)
			require.NoError(t, err)
			peer, err := net.Dial("udp4", r.Addr().String())
			require.NoError(t, err)
			far := netip.AddrPort{}
			for back := range 2 {
				got, order := map[int]int{}, []int{}
				b := make([]byte, 64)
				for i := range 1000 {
					msg := []byte{byte(i), byte(i >> 8), byte(i) ^ 0x5a, byte(i>>8) ^ 0x5a}
					if back == 0 {
						_, err = peer.Write(msg)
					} else {
						_, err = target.WriteToUDPAddrPort(msg, far)
					}
					require.NoError(t, err)
					if i%50 != 49 {
						continue
					}
					for {
						n := 0
						wait := time.Now().Add(2 * lull)
						if i == 999 {
							wait = time.Now().Add(20 * lull)
						}
						if back == 0 {
							var from netip.AddrPort
							_ = target.SetReadDeadline(wait)
							if n, from, err = target.ReadFromUDPAddrPort(b); err == nil {
								far = from
							}
						} else {
							_ = peer.SetReadDeadline(wait)
							n, err = peer.Read(b)
						}
						if err != nil {
							break
						}
						require.Equal(t, 4, n)
						if b[0]^b[2] == 0x5a && b[1]^b[3] == 0x5a {
							k := int(b[0]) | int(b[1])<<8
							got[k]++
							order = append(order, k)
						}
					}
				}
				require.InDelta(t, 200, c.holds(got, order), 80, "%+v", c.rules)
			}
			r.Close()
			_, _ = peer.Close(), target.Close()
		})
	}
}
