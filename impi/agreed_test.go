package impi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/impi"
)

// TestAgentConfig checks that the values of every host count, those of other channels too, so that
// all agents compute the same.
func TestAgentConfig(t *testing.T) {
	w := impi.World{PacketLen: 4000, Clients: []impi.Client{
		{Hosts: []impi.Host{{Ackmark: 10, Hiwater: 20, Procs: []impi.Proc{alice, anna}}}},
		{Hosts: []impi.Host{{Ackmark: 7, Hiwater: 30, Procs: []impi.Proc{bob}}, {Ackmark: 8, Hiwater: 15}}},
	}}
	c := w.AgentConfig(&w.Clients[0].Hosts[0], &w.Clients[1].Hosts[0])
	require.Equal(t, impi.AgentConfig{
		Local: []impi.Proc{alice, anna}, Remote: []impi.Proc{bob}, MaxPacket: 4000, Hiwater: 15, Ackmark: 7,
	}, c)
	newAgent(t, c)

	w.PacketLen = 1<<32 - 1
	newAgent(t, w.AgentConfig(&w.Clients[1].Hosts[0], &w.Clients[0].Hosts[0]))
}
