package qs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	typeA    = 1
	typeAAAA = 28
)

// A nameserver answers queries for the A and AAAA records of kv.test over udp.
type nameserver struct {
	*net.UDPConn
	mu    sync.Mutex // guards the fields below
	ips   []netip.Addr
	asked int
}

func newNameserver(t *testing.T, ips ...string) *nameserver {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	s := &nameserver{UDPConn: c}
	s.set(ips...)
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	go func() {
		defer close(done)
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(s.answer(b[:n]), from)
		}
	}()
	return s
}

func (s *nameserver) set(ips ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ips = nil
	for _, ip := range ips {
		s.ips = append(s.ips, netip.MustParseAddr(ip))
	}
}

// answer is a response: the header, the question, and a record for each address.
func (s *nameserver) answer(q []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := 12 + bytes.IndexByte(q[12:], 0) + 1 + 4
	kind := binary.BigEndian.Uint16(q[end-4:])
	known := bytes.HasPrefix(q[12:], []byte("\x02kv\x04test\x00"))
	a := append([]byte(nil), q[:end]...)
	a[2], a[3] = 0x84, 0
	if !known {
		a[3] = 3 // NXDOMAIN
	}
	copy(a[4:12], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	if !known || kind != typeA && kind != typeAAAA {
		return a
	}
	s.asked++
	for _, ip := range s.ips {
		if ip.Is4() == (kind == typeA) {
			a[7]++
			b := ip.AsSlice()
			a = append(a, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(b))) // the name of the question, its type, IN, TTL 0, the length
			a = append(a, b...)
		}
	}
	return a
}

// resolver returns a resolver that queries s.
func (s *nameserver) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", s.LocalAddr().String())
	}}
}

// TestDNS checks three servers behind one name, whose addresses change.
func TestDNS(t *testing.T) {
	t.Parallel()
	ips := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	var mu sync.Mutex
	served := map[string]int{}
	port := "0"
	for _, ip := range ips {
		n := serverAt(t, "tcp://"+net.JoinHostPort(ip, port), qs.Config{}, func(n *qs.Node) {
			repeat.Handle(n, func(context.Context, string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				served[ip]++
				return ip, nil
			})
		})
		ap, err := netip.ParseAddrPort(n.Addr().String()[len("tcp://"):])
		require.NoError(t, err)
		port = fmt.Sprint(ap.Port())
	}
	ns := newNameserver(t, ips...)
	c := open(t, "tcp://", qs.Config{TCP: tcp.Options{Resolver: ns.resolver()}})
	o := qs.PeerOptions{Balancer: qs.RoundRobin(), ResolveInterval: 10 * time.Millisecond}
	to, err := c.PeerWith(testContext(t), o, "tcp://kv.test:"+port)
	require.NoError(t, err)
	require.Equal(t, "tcp://kv.test:"+port, to.String())
	require.Len(t, to.Addrs(), 3)
	for range 300 {
		_, err := repeat.Call(testContext(t), to, "x")
		require.NoError(t, err)
	}
	mu.Lock()
	require.Equal(t, map[string]int{ips[0]: 100, ips[1]: 100, ips[2]: 100}, served)
	mu.Unlock()

	ns.set("127.0.0.3")
	for len(to.Addrs()) != 1 {
		_, err := repeat.Call(testContext(t), to, "x")
		require.NoError(t, err)
	}
	got, err := repeat.Call(testContext(t), to, "x")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.3", got)
	ns.set("127.0.0.3", "127.0.0.2")
	for seen := []string{}; len(seen) < 2; {
		got, err := repeat.Call(testContext(t), to, "x")
		require.NoError(t, err)
		if !slices.Contains(seen, got) {
			seen = append(seen, got)
		}
	}

	_, err = c.PeerWith(testContext(t), o, "tcp://nobody.test:"+port)
	require.ErrorIs(t, err, qs.ErrNoEntry)
	require.ErrorContains(t, err, "host nobody.test was not found: no such host")
}

// TestDNSFamilies checks that a host with addresses of both families is reached where only one of
// them is served; its servers are not counted twice.
func TestDNSFamilies(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skip("a machine may have no IPv6")
	} else {
		_ = l.Close()
	}
	for listen, ips := range map[string][]string{
		"[::1]":     {"127.0.0.1", "127.0.0.2", "::1"},
		"127.0.0.2": {"::1", "127.0.0.2"},
	} {
		n := serverAt(t, "tcp://"+listen+":0", qs.Config{}, func(n *qs.Node) {
			repeat.Handle(n, func(_ context.Context, s string) (string, error) { return s, nil })
		})
		ap, err := netip.ParseAddrPort(n.Addr().String()[len("tcp://"):])
		require.NoError(t, err)
		ns := newNameserver(t, ips...)
		c := open(t, "tcp://", qs.Config{TCP: tcp.Options{Resolver: ns.resolver()}})
		to, err := c.PeerWith(testContext(t), qs.PeerOptions{}, fmt.Sprintf("tcp://kv.test:%d", ap.Port()))
		require.NoError(t, err)
		require.Less(t, len(to.Addrs()), len(ips), "%v", to.Addrs())
		for range 10 {
			got, err := repeat.Call(testContext(t), to, "x")
			require.NoError(t, err)
			require.Equal(t, "x", got)
		}
	}
}
