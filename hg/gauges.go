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

// PeerGauges are those of one session.
type PeerGauges struct {
	Address string
	na.PeerStats
}

// ServeGauges has c answer GaugesRPC. Anyone who can reach c can read the addresses of its
// peers and how much they send.
func (c *Class) ServeGauges() error {
	_, err := c.Register(GaugesRPC, func(r Request) error {
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
			g.Peers = append(g.Peers, PeerGauges{p.Addr.Named().String(), p})
		}
		all = append(all, g)
	}
	return all
}
