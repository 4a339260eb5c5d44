package inspect

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// A GaugesRequest is the input of GaugesRPC, encoded by EncodeGaugesRequest. An empty input is the
// zero value.
type GaugesRequest struct {
	// Watch starts the watching of the process: its calls in flight are listed, and events counted,
	// from the first request with Watch until 15 seconds after the last one. The output is decoded
	// by DecodeActivity.
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

// An Activity describes one context of a process that is watched: its gauges, the calls in flight,
// and the events since the watch began.
type Activity struct {
	Gauges
	Calls   []CallState // calls in flight, the oldest first, at most 1,000
	More    int         // number of calls in flight that are not in Calls
	Watched time.Duration
	Methods []MethodCount
	Traffic []PeerCount
}

// A CallState is a Call in a form that can be encoded. Peer is the label of the other side
// (na.Addr.Label).
type CallState struct {
	Kind  EventKind
	RPC   string
	Peer  string
	ID    uint64
	State string
	Age   time.Duration
	Moved int64 // Call.Moved, or Flow.Bytes for a call with items
	Size  int64
	Items int64 // Flow.Items, for a call with items
	In    bool  // Flow.In: this side receives the items
}

// A MethodCount counts the events of one kind and RPC. Beyond 256 of these, the others share the
// name "(others)".
type MethodCount struct {
	Kind     EventKind
	RPC      string
	Count    int64
	Errors   int64
	Sent     int64 // bytes
	Received int64
	Total    time.Duration
	Times    map[int]int64 // number of events by duration: the key is a TimeBucket
}

// A PeerCount counts the events of one peer. Beyond 1,024 peers, the others share the address
// "(others)".
type PeerCount struct {
	Address  string // as in PeerGauges
	Count    int64  // calls to the peer and requests of it; without transfers
	Errors   int64
	Sent     int64 // bytes, by calls, requests and transfers
	Received int64
}

// EncodeActivity returns the output of GaugesRPC for a program that is watched. DecodeGauges
// decodes it, too.
func EncodeActivity(all []Activity) ([]byte, error) { return codec.Msgpack.Append(nil, all) }

// DecodeActivity decodes the output of GaugesRPC for an input with Watch: one Activity for each
// context. A process of a release without Watch returns only its gauges. output is not kept.
func DecodeActivity(output []byte) (all []Activity, err error) {
	if err = codec.Msgpack.Decode(output, &all); err != nil {
		return nil, fmt.Errorf("decode the activity: %w", err)
	}
	return all, nil
}

// bucketsPerDoubling is the resolution of TimeBucket.
const bucketsPerDoubling = 8

// TimeBucket returns the number of the bucket that counts d: there are 8 for each doubling, from 0
// for up to a nanosecond.
func TimeBucket(d time.Duration) int {
	return int(math.Ceil(bucketsPerDoubling * math.Log2(float64(max(d, 1)))))
}

// BucketTime returns the longest duration of a bucket.
func BucketTime(bucket int) time.Duration {
	return time.Duration(math.Exp2(float64(bucket) / bucketsPerDoubling))
}
