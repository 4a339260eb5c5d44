package impi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// newClient has hosts with so many processes each.
func newClient(rank int, procs ...int) Client {
	c := Client{Versions: []Version{{}}, PacketLen: 8192, MaxTag: math.MaxInt32, CollXSize: Default, CollMaxLinear: Default}
	for i, n := range procs {
		h := Host{Addr: [16]byte{byte(rank), byte(i)}, Port: uint32(1000 + i), Ackmark: 2, Hiwater: 8}
		for p := range n {
			h.Procs = append(h.Procs, Proc{Host: [16]byte{15: byte(p)}, PID: int64(rank*10000 + i*100 + p)})
		}
		c.Hosts = append(c.Hosts, h)
	}
	return c
}

// newSet is what a server makes of the parts.
func newSet(label protocol.Label, parts ...[]byte) protocol.Set {
	s := protocol.Set{Label: label, Mask: protocol.Mask{1<<len(parts) - 1}}
	for _, p := range parts {
		s.Data = append(s.Data, p...)
	}
	return s
}

// newWorldFrom is what a client makes of all; change may damage a set.
func newWorldFrom(clients []Client, change func(*protocol.Set)) (*World, error) {
	r := newWorldReader(len(clients))
	for _, label := range labels {
		var parts [][]byte
		for i := range clients {
			parts = append(parts, clients[i].encodeLabel(label))
		}
		s := newSet(label, parts...)
		if change != nil {
			change(&s)
		}
		if err := r.readSet(s); err != nil {
			return nil, err
		}
	}
	return &r.world, nil
}

func u32(values ...uint32) (b []byte) {
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// TestLabels (L21) checks that the labels are these, and in this order.
func TestLabels(t *testing.T) {
	require.Equal(t, [...]protocol.Label{
		0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500, 0x1600, 0x2000, 0x2100, 0x2200, 0x2300, 0x2400, 0x3000, 0x3100,
	}, labels)
	c := newClient(3, 1, 2)
	c.Versions = append(c.Versions, Version{0, 1})
	h0, h1 := append([]byte{3, 0}, make([]byte, 14)...), append([]byte{3, 1}, make([]byte, 14)...)
	p0, p1 := make([]byte, 16), append(make([]byte, 15), 1)
	for label, want := range map[protocol.Label][]byte{
		LabelVersion: u32(0, 0, 0, 1), LabelHosts: u32(2), LabelProcs: u32(3), LabelPacketLen: u32(8192),
		LabelMaxTag: u32(0x7FFFFFFF), LabelCollXSize: u32(0xFFFFFFFF), LabelCollMaxLinear: u32(0xFFFFFFFF),
		LabelHostAddr: slices.Concat(h0, h1), LabelHostPort: u32(1000, 1001), LabelHostProcs: u32(1, 2),
		LabelHostAckmark: u32(2, 2), LabelHostHiwater: u32(8, 8),
		LabelProcAddr: slices.Concat(p0, p0, p1), LabelProcPID: u32(0, 30000, 0, 30100, 0, 30101),
	} {
		require.Equal(t, want, c.encodeLabel(label), "label %v", label)
	}
}

// TestVersions (L-T32) checks that each pair takes the highest version that both speak.
func TestVersions(t *testing.T) {
	clients := []Client{newClient(0, 1), newClient(1, 1), newClient(2, 1)}
	clients[1].Versions = []Version{{}, {0, 1}}
	clients[2].Versions = []Version{{}, {0, 1}, {1, 0}}
	w, err := newWorldFrom(clients, nil)
	require.NoError(t, err)
	require.Equal(t, Version{}, w.Version(0, 1))
	require.Equal(t, Version{}, w.Version(2, 0))
	require.Equal(t, Version{0, 1}, w.Version(1, 2))
	require.Equal(t, Version{1, 0}, w.Version(2, 2))

	for name, lists := range map[string][][]byte{
		"without 0.0":   {u32(0, 1), u32(0, 0)},
		"not ascending": {u32(0, 0, 1, 0, 0, 1), u32(0, 0)},
		"twice":         {u32(0, 0, 0, 1, 0, 1), u32(0, 0)},
		"one too few":   {u32(0, 0), nil},
		"one too many":  {u32(0, 0), u32(0, 0, 0, 0)},
		"half":          {u32(0, 0), u32(0)},
	} {
		require.Error(t, newWorldReader(2).readSet(newSet(LabelVersion, lists...)), name)
	}
}

// TestAgreement (L-T33) checks that the limits of collective operations are the same for all, once
// the default is replaced by its value.
func TestAgreement(t *testing.T) {
	clients := []Client{newClient(0, 1), newClient(1, 1), newClient(2, 1)}
	clients[1].CollXSize, clients[1].CollMaxLinear = 1024, 4
	w, err := newWorldFrom(clients, nil)
	require.NoError(t, err)
	require.Equal(t, int32(1024), w.CollXSize)
	require.Equal(t, int32(4), w.CollMaxLinear)
	require.Equal(t, int32(Default), w.Clients[0].CollXSize)

	clients[1].CollXSize = 2048
	_, err = newWorldFrom(clients, nil)
	require.EqualError(t, err, "impi: label 0x1500: client 1 has 2048, client 0 has 1024")
	clients[1].CollXSize, clients[0].CollMaxLinear = 1024, 5
	_, err = newWorldFrom(clients, nil)
	require.EqualError(t, err, "impi: label 0x1600: client 1 has 4, client 0 has 5")
	require.Error(t, newWorldReader(1).readSet(newSet(LabelCollXSize, u32(0xFFFFFFFE))))
}

// TestMinimum (L-T34) checks that the smallest limit counts.
func TestMinimum(t *testing.T) {
	clients := []Client{newClient(0, 1), newClient(1, 1), newClient(2, 1)}
	clients[1].PacketLen, clients[1].MaxTag = 1024, 40000
	w, err := newWorldFrom(clients, nil)
	require.NoError(t, err)
	require.Equal(t, uint32(1024), w.PacketLen)
	require.Equal(t, int32(40000), w.MaxTag)
	require.Error(t, newWorldReader(1).readSet(newSet(LabelMaxTag, u32(32766))))
	require.Error(t, newWorldReader(1).readSet(newSet(LabelMaxTag, u32(1<<31))))
	require.Error(t, newWorldReader(1).readSet(newSet(LabelPacketLen, u32(0))))
}

// TestSplit (L-T35) checks that hosts and processes are assigned to their clients: 3 hosts with 2
// processes, 2 with 3, 2 with 4.
func TestSplit(t *testing.T) {
	clients := []Client{newClient(0, 2, 2, 2), newClient(1, 3, 3), newClient(2, 4, 4), newClient(3), newClient(4, 0, 5)}
	w, err := newWorldFrom(clients, nil)
	require.NoError(t, err)
	for rank, c := range clients {
		require.Len(t, w.Clients[rank].Hosts, len(c.Hosts))
		for i, h := range c.Hosts {
			got := w.Clients[rank].Hosts[i]
			require.Equal(t, fmt.Sprint(h), fmt.Sprint(got), "client %d, host %d", rank, i)
		}
	}
}

// TestPIDOfFourBytes (L-T36) checks that process numbers have 8 bytes, or 4.
func TestPIDOfFourBytes(t *testing.T) {
	clients := []Client{newClient(0, 2), newClient(1, 1)}
	w, err := newWorldFrom(clients, func(s *protocol.Set) {
		if s.Label == LabelProcPID {
			s.Data = u32(7, 8, 0xFFFFFFFF)
		}
	})
	require.NoError(t, err)
	require.Equal(t, int64(8), w.Clients[0].Hosts[0].Procs[1].PID)
	require.Equal(t, int64(0xFFFFFFFF), w.Clients[1].Hosts[0].Procs[0].PID)
}

// TestBadSets (L17, L27) checks that inconsistent data is an error, and an announced number alone
// causes no allocation.
func TestBadSets(t *testing.T) {
	clients := []Client{newClient(0, 2), newClient(1, 1)}
	for _, c := range []struct {
		label protocol.Label
		data  []byte
		why   string
	}{
		{LabelHosts, u32(1), "4 bytes for 2 clients"},
		{LabelHosts, u32(0xFFFFFFFF, 0xFFFFFFFF), "32 bytes for 8589934590 hosts"},
		{LabelProcs, u32(0xFFFFFFFF, 1), "hosts of client 0 have 2 processes, want 4294967295"},
		{LabelHostAddr, make([]byte, 16), "16 bytes for 2 hosts"},
		{LabelHostPort, u32(1, 2, 3), "12 bytes for 2 hosts"},
		{LabelHostProcs, u32(1, 2), "hosts of client 0 have 1 processes, want 2"},
		{LabelHostAckmark, u32(0, 1), "client 0, host 0: ackmark 0, hiwater 8"},
		{LabelHostHiwater, u32(8, 1), "client 1, host 0: ackmark 2, hiwater 1"},
		{LabelProcAddr, make([]byte, 47), "47 bytes for 3 processes"},
		{LabelProcPID, make([]byte, 20), "20 bytes for 3 processes"},
	} {
		_, err := newWorldFrom(clients, func(s *protocol.Set) {
			if s.Label == c.label {
				s.Data = c.data
			}
		})
		require.ErrorContains(t, err, c.why, "label %v", c.label)
	}
	_, err := newWorldFrom(clients, func(s *protocol.Set) {
		if s.Label == LabelHostPort {
			s.Mask = protocol.Mask{1}
		}
	})
	require.EqualError(t, err, "impi: label 0x2100 missing from client 1")
}

// FuzzWorld checks that with any contents of the labels, reading them ends, and takes no more
// memory than they have bytes.
func FuzzWorld(f *testing.F) {
	clients := []Client{newClient(0, 1, 2), newClient(1, 1)}
	var good []byte
	for _, label := range labels {
		data := append(clients[0].encodeLabel(label), clients[1].encodeLabel(label)...)
		good = append(append(good, byte(len(data))), data...)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newWorldReader(2)
		for _, label := range labels {
			if len(b) == 0 {
				return
			}
			n := min(int(b[0]), len(b)-1)
			if r.readSet(newSet(label, b[1:1+n], nil)) != nil {
				return
			}
			b = b[1+n:]
		}
		procs := 0
		for i := range r.world.Clients {
			procs += r.world.Clients[i].procCount()
			require.NoError(t, checkVersions(r.world.Clients[i].Versions))
		}
		require.LessOrEqual(t, 16*procs, 255)
	})
}

func TestClientIsChecked(t *testing.T) {
	for name, change := range map[string]func(*Client){
		"versions": func(c *Client) { c.Versions = nil },
		"packets":  func(c *Client) { c.PacketLen = 0 },
		"tag":      func(c *Client) { c.MaxTag = 100 },
		"size":     func(c *Client) { c.CollXSize = -2 },
		"port":     func(c *Client) { c.Hosts[0].Port = 1 << 16 },
		"hiwater":  func(c *Client) { c.Hosts[0].Hiwater = 1 },
	} {
		c := newClient(0, 1)
		require.NoError(t, c.validate())
		change(&c)
		require.Error(t, c.validate(), name)
	}
}

func TestAuthFromEnv(t *testing.T) {
	env := map[string]string{}
	lookup := func(k string) (string, bool) { v, ok := env[k]; return v, ok }
	auth, err := AuthFromEnv(lookup)
	require.NoError(t, err)
	require.Equal(t, protocol.Auth{}, auth)
	env["IMPI_AUTH_NONE"] = ""
	env["IMPI_AUTH_KEY"] = "-2"
	auth, err = AuthFromEnv(lookup)
	require.NoError(t, err)
	require.True(t, auth.None)
	require.Equal(t, uint64(math.MaxUint64-1), *auth.Key)
	env["IMPI_AUTH_KEY"] = "secret"
	_, err = AuthFromEnv(lookup)
	require.ErrorContains(t, err, "not a 64-bit number")
	require.NotContains(t, err.Error(), "secret")
}

// TestExchange checks L7 to L24 over sockets: three clients, all 14 labels, and the same world for
// all.
func TestExchange(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	key := uint64(1)
	auth := protocol.Auth{Key: &key}
	var all sync.WaitGroup
	served := errors.New("not served")
	all.Go(func() {
		served = rendezvous.Serve(ctx, l, rendezvous.ServerConfig{Form: protocol.Strict, Size: 3, Auth: auth})
	})
	var worlds [3]*World
	var errs [3]error
	for rank := range worlds {
		all.Go(func() {
			m, err := rendezvous.Join(ctx, rendezvous.Config{Form: protocol.Strict, Addr: l.Addr().String(), Rank: rank, Auth: auth})
			if err != nil {
				errs[rank] = err
				return
			}
			defer m.Close()
			if worlds[rank], errs[rank] = Exchange(ctx, m, newClient(rank, rank+1, 2)); errs[rank] == nil {
				errs[rank] = m.Leave()
			}
		})
	}
	all.Wait()
	require.Equal(t, [3]error{}, errs)
	require.NoError(t, served)
	require.Len(t, worlds[0].Clients, 3)
	require.Equal(t, worlds[0], worlds[1])
	require.Equal(t, worlds[0], worlds[2])
}
