package inspect

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// A GaugesRequest is the input of GaugesRPC, encoded by EncodeGaugesRequest. An empty input is the zero value.
type GaugesRequest struct {
	// Watch has the program tell what is under way, and count what ends: from the first request with it until nobody has asked for 15
	// seconds. The output is what DecodeActivity decodes.
	Watch bool
}

// EncodeGaugesRequest returns the input of GaugesRPC for r.
func EncodeGaugesRequest(r GaugesRequest) ([]byte, error) { return codec.Msgpack.Append(nil, &r) }

// DecodeGaugesRequest decodes the input of GaugesRPC. input is not kept.
func DecodeGaugesRequest(input []byte) (r GaugesRequest, err error) {
	if len(input) > 0 {
		err = codec.Msgpack.Decode(input, &r)
	}
	return r, err
}

// An Activity is what a program tells of one of its contexts while it is watched: its gauges, what is under way, and what has ended since
// the watch began.
type Activity struct {
	Gauges
	Calls   []CallState // the oldest first, at most 1,000
	More    int         // of them, that are not in Calls
	Watched time.Duration
	Methods []MethodCount
	Traffic []PeerCount
}

// A CallState is a Call for others to decode. Peer is the label of the other side (na.Addr.Label).
type CallState struct {
	Kind  EventKind
	RPC   string
	Peer  string
	ID    uint64
	State string
	Age   time.Duration
	Moved int64 // of one with items, the bytes of these
	Size  int64
	Items int64 // so far, of one whose results come one after the other
	In    bool  // the items come to this side; else it sends them
}

// A MethodCount counts the events of one kind and RPC. Those of more than 256 share the name "(others)".
type MethodCount struct {
	Kind     EventKind
	RPC      string
	Count    int64
	Errors   int64
	Sent     int64 // bytes
	Received int64
	Total    time.Duration
	Times    map[int]int64 // how many took so long, by TimeBucket
}

// A PeerCount counts the events of one peer. Those of more than 1,024 share the address "(others)".
type PeerCount struct {
	Address  string // as in PeerGauges
	Count    int64  // calls to it and requests of it; not transfers
	Errors   int64
	Sent     int64 // bytes, by calls, requests and transfers
	Received int64
}

// EncodeActivity returns the output of GaugesRPC for a program that is watched. DecodeGauges decodes it, too.
func EncodeActivity(all []Activity) ([]byte, error) { return codec.Msgpack.Append(nil, all) }

// DecodeActivity decodes the output of GaugesRPC, of whose input Watch was set: one Activity for each context. A program that knows no
// Watch returns its gauges only. output is not kept.
func DecodeActivity(output []byte) (all []Activity, err error) {
	if err = codec.Msgpack.Decode(output, &all); err != nil {
		return nil, fmt.Errorf("decoding the activity: %w", err)
	}
	return all, nil
}

// bucketsPerDoubling says how fine TimeBucket is.
const bucketsPerDoubling = 8

// TimeBucket returns the number of the bucket that counts d: there are 8 for each doubling, from 0 for up to a nanosecond.
func TimeBucket(d time.Duration) int {
	return int(math.Ceil(bucketsPerDoubling * math.Log2(float64(max(d, 1)))))
}

// BucketTime returns the longest duration of a bucket.
func BucketTime(bucket int) time.Duration {
	return time.Duration(math.Exp2(float64(bucket) / bucketsPerDoubling))
}
