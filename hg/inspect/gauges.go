package inspect

import (
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// GaugesRPC is the RPC that returns the gauges of a process. It is available once the process has
// called hg.Class.ServeGauges. The command "qs ger" calls it. Any process that can connect can call
// it. Its input is empty or a GaugesRequest, and its output is decoded by DecodeGauges.
const GaugesRPC = "hg/gauges"

// Gauges holds the gauges of one context.
type Gauges struct {
	Context   int    // target ID
	Address   string // address of the context
	Eager     int    // na.Config.Eager
	Envelopes int    // na.Config.Envelopes, as far as Budget permits
	Budget    int64  // na.Config.Budget
	Reserved  int64  // bytes of Budget guaranteed to the peers of all contexts
	HighWater int    // na.Stats.HighWater
	Stalls    int64  // na.Stats.Stalls
	// Active is the number of requests whose handlers have begun and that have not completed,
	// excluding those with streams.
	Active           int64
	Waiting          int64 // number of requests waiting to be admitted
	MaxActive        int   // hg.Config.MaxActive
	MaxActivePerPeer int   // hg.Config.MaxActivePerPeer
	Streams          int64 // number of requests with streams that have not completed; not counted in Active
	MaxStreams       int   // hg.Config.MaxStreams

	MaxStreamsPerPeer int // hg.Config.MaxStreamsPerPeer

	Inline int64 // hg.Stats.Inline
	Loans  int64 // hg.Stats.Loans
	NoRoom int64 // hg.Stats.NoRoom
	Peers  []PeerGauges
}

// PeerGauges holds the gauges of one session.
type PeerGauges struct {
	Address string
	Label   string // na.Addr.Label
	Streams int64  // number of the requests in Gauges.Streams that belong to this session
	na.PeerStats
}

// DecodeGauges decodes the output of GaugesRPC. It returns one Gauges per context. It does not
// retain output.
func DecodeGauges(output []byte) (all []Gauges, err error) {
	err = codec.Msgpack.Decode(output, &all)
	return all, err
}
