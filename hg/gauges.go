package hg

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

// ServeGauges registers a handler for [inspect.GaugesRPC]. Peers that can reach c can then read the
// addresses of its peers, their traffic, and the names of the methods called. Use Config.Authorize
// to restrict access.
func (c *Class) ServeGauges() error {
	_, err := c.Register(inspect.GaugesRPC, func(r Request) error {
		in, err := r.InputRaw()
		if err != nil {
			return err
		}
		asked, err := inspect.DecodeGaugesRequest(in)
		if err != nil {
			return Errorf(ErrBadInput, "decode the request for gauges: %w", err)
		}
		var b []byte
		if asked.Watch {
			b, err = inspect.EncodeActivity(c.activity())
		} else {
			b, err = codec.Msgpack.Append(nil, c.Gauges())
		}
		if err != nil {
			return fmt.Errorf("encode the gauges: %w", err)
		}
		return r.RespondRaw(b, nil)
	})
	return err
}

// Gauges returns the gauges of every context.
func (c *Class) Gauges() (all []inspect.Gauges) {
	cfg := c.na.Config()
	for _, hctx := range c.Contexts() {
		s := hctx.Stats()
		g := inspect.Gauges{
			Context: hctx.ID(), Address: hctx.Self().String(),
			Eager: cfg.Eager, Envelopes: cfg.Envelopes, Budget: cfg.Budget,
			Reserved: s.NA.Reserved, HighWater: s.NA.HighWater, Stalls: s.NA.Stalls, Active: s.Active, Waiting: s.Waiting,
			MaxActive: c.cfg.MaxActive, MaxActivePerPeer: c.cfg.MaxActivePerPeer,
			Streams: s.Streams, MaxStreams: c.cfg.MaxStreams, MaxStreamsPerPeer: c.cfg.MaxStreamsPerPeer, Inline: s.Inline, Loans: s.Loans, NoRoom: s.NoRoom,
		}
		for _, p := range hctx.nctx.Peers() {
			_, streams := splitLoad(p.Load)
			g.Peers = append(g.Peers, inspect.PeerGauges{Address: p.Addr.Named().String(), Label: p.Addr.Label(), Streams: streams, PeerStats: p})
		}
		all = append(all, g)
	}
	return all
}
