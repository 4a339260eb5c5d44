package inspect

import (
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// GaugesRPC is the RPC that returns the gauges of a process, after it has called
// hg.Class.ServeGauges; the command "qs ger" calls it. Any process that can connect can call it.
// Its input is empty or a GaugesRequest, and DecodeGauges decodes its output.
const GaugesRPC = "hg/gauges"

// Gauges are the gauges of one context.
type Gauges struct {
	Context   int    // target id
	Address   string // address of the context
	Eager     int    // na.Config.Eager
	Envelopes int    // na.Config.Envelopes, as far as Budget allows them
	Budget    int64  // na.Config.Budget
	Reserved  int64  // bytes of Budget that are guaranteed to peers of all contexts
	HighWater int    // na.Stats.HighWater
	Stalls    int64  // na.Stats.Stalls
	// requests whose handlers have begun and that have not ended, without those with streams
	Active           int64
	Waiting          int64 // requests that wait to be admitted
	MaxActive        int   // hg.Config.MaxActive
	MaxActivePerPeer int   // hg.Config.MaxActivePerPeer
	Streams          int64 // requests with streams that have not ended, which Active does not count
	MaxStreams       int   // hg.Config.MaxStreams

	MaxStreamsPerPeer int // hg.Config.MaxStreamsPerPeer

	Inline int64 // hg.Stats.Inline
	Loans  int64 // hg.Stats.Loans
	NoRoom int64 // hg.Stats.NoRoom
	Peers  []PeerGauges
}

// PeerGauges are the gauges of one session.
type PeerGauges struct {
	Address string
	Label   string // na.Addr.Label
	Streams int64  // the part of Gauges.Streams in this session
	na.PeerStats
}

// DecodeGauges decodes the output of GaugesRPC: one Gauges for each context. output is not kept.
func DecodeGauges(output []byte) (all []Gauges, err error) {
	err = codec.Msgpack.Decode(output, &all)
	return all, err
}
