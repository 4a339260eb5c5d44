package hg

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// GaugesRPC is the RPC by which a program tells its gauges to whoever asks, if it has called ServeGauges: qs ger does.
// Its input is empty, its output what DecodeGauges decodes.
const GaugesRPC = "hg/gauges"

// Gauges are what a program tells of one of its contexts.
type Gauges struct {
	Context   int    // target id
	Address   string // of the context
	Eager     int    // na.Config.Eager
	Envelopes int    // na.Config.Envelopes, as far as Budget allows them
	Budget    int64  // na.Config.Budget
	Reserved  int64  // of it, bytes guaranteed to peers of all contexts
	HighWater int    // na.Stats.HighWater
	Stalls    int64  // na.Stats.Stalls
	Active    int64  // requests whose handlers have begun and that have not ended
	Waiting   int64  // requests that wait for one of these to end
	Inline    int64  // Stats.Inline
	Loans     int64  // Stats.Loans
	NoRoom    int64  // Stats.NoRoom
	Peers     []PeerGauges
}

// PeerGauges are those of one session: see na.PeerStats.
type PeerGauges struct {
	Address   string
	Offered   int
	Held      int
	HeldMax   int
	Promised  int
	Free      int
	Queued    int
	HighWater int
	Stalls    int64
	Room      int64
	RoomHeld  int64
	RoomFree  int64
}

// ServeGauges has c answer GaugesRPC. Who can reach c learns the addresses of its peers and how much they send.
func (c *Class) ServeGauges() error {
	_, err := c.Register(GaugesRPC, func(r Incoming) error {
		b, err := codec.Msgpack.Append(nil, c.Gauges())
		if err != nil {
			return fmt.Errorf("encoding the gauges: %w", err)
		}
		return r.RespondRaw(b, nil)
	})
	return err
}

// DecodeGauges decodes the output of GaugesRPC: one Gauges for each context.
func DecodeGauges(output []byte) (all []Gauges, err error) {
	err = codec.Msgpack.Decode(output, &all)
	return all, err
}

// Gauges returns those of every context.
func (c *Class) Gauges() (all []Gauges) {
	cfg := c.na.Config()
	for _, hctx := range c.Contexts() {
		s := hctx.Stats()
		g := Gauges{
			Context: hctx.ID(), Address: hctx.Self().String(),
			Eager: cfg.Eager, Envelopes: cfg.Envelopes, Budget: cfg.Budget,
			Reserved: s.NA.Reserved, HighWater: s.NA.HighWater, Stalls: s.NA.Stalls, Active: s.Active, Waiting: s.Waiting,
			Inline: s.Inline, Loans: s.Loans, NoRoom: s.NoRoom,
		}
		for _, p := range hctx.nctx.Peers() {
			g.Peers = append(g.Peers, peerGauges(p))
		}
		all = append(all, g)
	}
	return all
}

func peerGauges(p na.PeerStats) PeerGauges {
	return PeerGauges{
		Address: p.Addr.Named().String(), Offered: p.Offered, Held: p.Held, HeldMax: p.HeldMax,
		Promised: p.Promised, Free: p.Free, Queued: p.Queued, HighWater: p.HighWater, Stalls: p.Stalls,
		Room: p.Room, RoomHeld: p.RoomHeld, RoomFree: p.RoomFree,
	}
}
