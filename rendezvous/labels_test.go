package rendezvous_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// TestExchange (L-T42) checks that all members compute the same values.
func TestExchange(t *testing.T) {
	const size = 5
	h := startServer(t, rendezvous.ServerConfig{Size: size, Auth: secret})
	worlds := make([]*rendezvous.World, size)
	infos := make([]rendezvous.Info, size)
	for i := range infos {
		infos[i] = rendezvous.Info{Addr: fmt.Sprint("tcp://10.0.0.", i, ":7000"), Features: 1<<i ^ 0xff, GER: uint32(32 - 8*(i%3)), Name: fmt.Sprint("node", i)}
	}
	infos[4].GER, infos[4].Name = 0, "" // does not contain
	for rank, err := range eachRank(size, func(rank int) error {
		m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Rank: rank, Size: size, Auth: secret})
		if err != nil {
			return err
		}
		defer m.Close()
		if worlds[rank], err = m.Exchange(testContext(t), infos[rank]); err != nil {
			return err
		}
		return m.Leave()
	}) {
		require.NoError(t, err, "rank %d", rank)
		require.Equal(t, &rendezvous.World{Members: infos, Features: 0xe0, GER: 16}, worlds[rank])
	}
	require.NoError(t, h.end(t))
}

// TestExchangeLater checks that a member of a later release may send more under each label, and a
// label of its own; members of this release ignore that.
func TestExchangeLater(t *testing.T) {
	h := startServer(t, rendezvous.ServerConfig{Size: 2, Auth: secret})
	var world *rendezvous.World
	for rank, err := range eachRank(2, func(rank int) error {
		m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Rank: rank, Auth: secret})
		if err != nil {
			return err
		}
		defer m.Close()
		if rank == 0 {
			world, err = m.Exchange(testContext(t), rendezvous.Info{Addr: "tcp://a:1", Features: 7, GER: 8, Name: "old"})
			return err
		}
		for _, part := range []struct {
			label protocol.Label
			data  string
		}{
			{rendezvous.LabelAddr, "tcp://b:1"}, {rendezvous.LabelFeatures, "\x00\x00\x00\x00\x00\x00\x00\x06later"}, {rendezvous.LabelGER, "\x00\x00\x00\x10later"},
			{rendezvous.LabelName, "new"}, {rendezvous.LabelName + 0x100, "later"},
		} {
			if err := m.Collect(part.label, []byte(part.data), func(protocol.Set, error) {}); err != nil {
				return err
			}
		}
		return m.DoneWait(testContext(t))
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
	require.Equal(t, &rendezvous.World{Members: []rendezvous.Info{
		{Addr: "tcp://a:1", Features: 7, GER: 8, Name: "old"}, {Addr: "tcp://b:1", Features: 6, GER: 16, Name: "new"},
	}, Features: 6, GER: 8}, world)
}

// TestExchangeWithoutAMember checks that a member that does not submit one of the labels is an
// error for the others.
func TestExchangeWithoutAMember(t *testing.T) {
	h := startServer(t, rendezvous.ServerConfig{Size: 2, Auth: secret})
	errs := eachRank(2, func(rank int) error {
		m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Rank: rank, Auth: secret})
		if err != nil {
			return err
		}
		defer m.Close()
		if rank == 1 {
			if _, err := m.CollectWait(testContext(t), rendezvous.LabelFeatures, []byte("odd")); err != nil {
				return err
			}
			return m.DoneWait(testContext(t))
		}
		_, err = m.Exchange(testContext(t), rendezvous.Info{Addr: "a"})
		return err
	})
	require.ErrorContains(t, errs[0], "of rank 1 is missing or wrong")
	require.NoError(t, errs[1])
}

func TestExchangeInTheStrictForm(t *testing.T) {
	none := protocol.Auth{None: true}
	h := startServer(t, rendezvous.ServerConfig{Form: protocol.Strict, Size: 1, Auth: none})
	m, err := rendezvous.Join(testContext(t), rendezvous.Config{Form: protocol.Strict, Addr: h.addr, Auth: none})
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Exchange(testContext(t), rendezvous.Info{})
	require.ErrorContains(t, err, "protocol.Native")
}
