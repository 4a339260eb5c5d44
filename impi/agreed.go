package impi

import "math"

// AgentConfig returns the configuration of the channel between two hosts: their processes, the smallest packet length
// of all clients, and the smallest Ackmark and Hiwater of all hosts.
func (w *World) AgentConfig(local, remote *Host) AgentConfig {
	ackmark, hiwater := local.Ackmark, local.Hiwater
	for _, c := range w.Clients {
		for _, h := range c.Hosts {
			ackmark, hiwater = min(ackmark, h.Ackmark), min(hiwater, h.Hiwater)
		}
	}
	number := func(n uint32) int { return int(min(n, math.MaxInt32)) }
	return AgentConfig{
		Local: local.Procs, Remote: remote.Procs,
		MaxPacket: number(w.PacketLen), Hiwater: number(hiwater), Ackmark: number(ackmark),
	}
}
