package main

import "github.com/quicksilver-rpc/quicksilver/hg/inspect"

// A contextReport is the JSON form of a context's gauges. Its fields correspond to those of
// inspect.Gauges.
type contextReport struct {
	Context      int          `json:"context"`
	Address      string       `json:"address"`
	Eager        int          `json:"eager_bytes"`
	Envelopes    int          `json:"envelopes_per_peer"`
	Budget       int64        `json:"budget_bytes"`
	Reserved     int64        `json:"reserved_bytes"`
	HighWater    int          `json:"high_water_envelopes"`
	Stalls       int64        `json:"stalls"`
	Active       int64        `json:"active_requests"`
	Waiting      int64        `json:"waiting_requests"`
	Streams      int64        `json:"streams"`
	MaxStreams   int          `json:"max_streams"`
	StreamsPeer  int          `json:"max_streams_per_peer"`
	InlineBodies int64        `json:"inline_bodies"`
	LentBodies   int64        `json:"lent_bodies"`
	NoRoom       int64        `json:"no_room_bodies"`
	Peers        []peerReport `json:"peers"`
}

// A peerReport is the JSON form of a peer's gauges.
type peerReport struct {
	Address    string `json:"address"`
	Label      string `json:"label"`
	Process    string `json:"process,omitempty"`
	Remote     string `json:"remote,omitempty"`
	Transport  string `json:"transport"`
	Why        string `json:"why,omitempty"`
	Streams    int64  `json:"streams"`
	Offered    int    `json:"offered_envelopes"`
	Held       int    `json:"held_envelopes"`
	HeldMax    int    `json:"held_max_envelopes"`
	Reserved   int64  `json:"reserved_bytes"`
	Room       int64  `json:"room_bytes"`
	RoomHeld   int64  `json:"room_held_bytes"`
	RoomFree   int64  `json:"room_free_bytes"`
	Promised   int    `json:"promised_envelopes"`
	Free       int    `json:"free_envelopes"`
	Queued     int    `json:"queued_messages"`
	HighWater  int    `json:"high_water_envelopes"`
	StallCount int64  `json:"stalls"`
	HeldBy     string `json:"held_by,omitempty"`
}

func contextReports(all []inspect.Gauges) []contextReport {
	reports := []contextReport{}
	for _, g := range all {
		r := contextReport{
			Context: g.Context, Address: g.Address, Eager: g.Eager, Envelopes: g.Envelopes, Budget: g.Budget, Reserved: g.Reserved,
			HighWater: g.HighWater, Stalls: g.Stalls, Active: g.Active + g.Streams, Waiting: g.Waiting,
			Streams: g.Streams, MaxStreams: g.MaxStreams, StreamsPeer: g.MaxStreamsPerPeer, InlineBodies: g.Inline, LentBodies: g.Loans,
			NoRoom: g.NoRoom, Peers: []peerReport{},
		}
		for _, p := range g.Peers {
			r.Peers = append(r.Peers, peerReport{
				Address: p.Address, Label: p.Label, Process: p.Process, Remote: p.Remote, Transport: p.Transport, Why: p.Why,
				Streams: p.Streams, Offered: p.Offered, Held: p.Held, HeldMax: p.HeldMax, Reserved: p.Bytes, Room: p.Room, RoomHeld: p.RoomHeld,
				RoomFree: p.RoomFree, Promised: p.Promised, Free: p.Free, Queued: p.Queued, HighWater: p.HighWater, StallCount: p.Stalls, HeldBy: p.HeldBy,
			})
		}
		reports = append(reports, r)
	}
	return reports
}
