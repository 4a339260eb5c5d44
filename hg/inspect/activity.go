package inspect

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// A GaugesRequest is the input of GaugesRPC, as encoded by EncodeGaugesRequest. An empty input is
// equivalent to the zero value.
type GaugesRequest struct {
	// Watch requests that the process be watched. From the first request with Watch until 15
	// seconds after the last one, calls in flight are listed and events are counted. The output is
	// decoded by DecodeActivity.
	Watch bool
}

// EncodeGaugesRequest returns the input of GaugesRPC for r.
func EncodeGaugesRequest(r GaugesRequest) ([]byte, error) { return codec.Msgpack.Append(nil, &r) }

// DecodeGaugesRequest decodes the input of GaugesRPC. It does not retain input.
func DecodeGaugesRequest(input []byte) (r GaugesRequest, err error) {
	if len(input) > 0 {
		err = codec.Msgpack.Decode(input, &r)
	}
	return r, err
}

// An Activity describes one context of a watched process: its gauges, the calls in flight, and the
// events since the watch began.
type Activity struct {
	Gauges
	Calls   []CallState // calls in flight, oldest first, at most 1,000
	More    int         // number of calls in flight that are not listed in Calls
	Watched time.Duration
	Methods []MethodCount
	Traffic []PeerCount
}

// A CallState is an encodable form of a Call. Peer is the label of the other side (na.Addr.Label).
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
	In    bool  // Flow.In: reports whether this side receives the items
}

// A MethodCount counts the events of one kind and RPC. Once there are 256 of them, all others are
// counted under the name "(others)".
type MethodCount struct {
	Kind     EventKind
	RPC      string
	Count    int64
	Errors   int64
	Sent     int64 // bytes
	Received int64
	Total    time.Duration
	Times    map[int]int64 // number of events by duration, keyed by TimeBucket
}

// A PeerCount counts the events of one peer. Once there are 1,024 peers, all others are counted
// under the address "(others)".
type PeerCount struct {
	Address  string // address in the form of PeerGauges.Address
	Count    int64  // number of calls to the peer and requests from it, excluding transfers
	Errors   int64
	Sent     int64 // bytes sent in calls, requests, and transfers
	Received int64
}

// EncodeActivity returns the output of GaugesRPC for a watched process. DecodeGauges can also
// decode it.
func EncodeActivity(all []Activity) ([]byte, error) { return codec.Msgpack.Append(nil, all) }

// DecodeActivity decodes the output of GaugesRPC for an input with Watch. It returns one Activity
// per context. If the process runs a release that does not support Watch, they contain only its
// gauges. DecodeActivity does not retain output.
func DecodeActivity(output []byte) (all []Activity, err error) {
	if err = codec.Msgpack.Decode(output, &all); err != nil {
		return nil, fmt.Errorf("decode the activity: %w", err)
	}
	return all, nil
}

// bucketsPerDoubling is the number of buckets of TimeBucket per doubling of the duration.
const bucketsPerDoubling = 8

// TimeBucket returns the number of the bucket in which d is counted. There are 8 buckets per
// doubling of the duration. Bucket 0 contains durations of up to one nanosecond.
func TimeBucket(d time.Duration) int {
	return int(math.Ceil(bucketsPerDoubling * math.Log2(float64(max(d, 1)))))
}

// BucketTime returns the longest duration that is counted in the given bucket; see TimeBucket.
func BucketTime(bucket int) time.Duration {
	return time.Duration(math.Exp2(float64(bucket) / bucketsPerDoubling))
}
