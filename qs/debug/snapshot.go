package debug

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Snapshot is the state of a program's nodes, as shown by a Page. In its JSON representation, the
// values of fields whose names end in _ns are durations in nanoseconds. Lists have at most
// Query.Limit rows.
type Snapshot struct {
	// Time is the time at which the snapshot was taken.
	Time time.Time `json:"time"`
	// Process identifies the program.
	Process Process `json:"process"`
	// Query is the query, with defaults filled in.
	Query Query `json:"query"`
	// Observed reports whether completed calls are passed to the page, through Attach or Observe.
	// If not, Methods and Errors are empty.
	Observed bool `json:"observed"`
	// Causes lists the detected problems, the worst first and the least certain last.
	Causes []Cause `json:"causes"`
	// Load holds the sums over all methods. The library's own methods are included only if
	// Query.All is set.
	Load Load `json:"load"`
	// Contexts lists the contexts of the classes on the page.
	Contexts []Context `json:"contexts"`
	// Calls lists the calls, requests and other transfers in flight, oldest first, except for those
	// in Streams.
	Calls List[Call] `json:"calls"`
	// Streams lists the calls and requests with streams in flight. Streams whose caller has not
	// read an item for 1 s come first. Otherwise the oldest come first.
	Streams List[Call] `json:"streams"`
	// Methods lists statistics of the calls completed since the start of the page, by method and
	// kind.
	Methods List[Method] `json:"methods"`
	// Errors lists the failed calls, grouped by method, kind and code.
	Errors List[ErrorGroup] `json:"errors"`
	// Peers lists the sessions that are up.
	Peers List[Peer] `json:"peers"`
}

// A List holds a range of the rows of a list.
type List[T any] struct {
	// Total is the number of rows that match the query.
	Total int `json:"total"`
	// Rows holds at most Query.Limit rows, starting at Query.Offset.
	Rows []T `json:"rows"`
}

// A Process describes the running program.
type Process struct {
	// Name is the name of the node (qs.Config.Name) or, if it has none, of the program.
	Name string `json:"name"`
	// PID is the process ID.
	PID int `json:"pid"`
	// Host is the host name of the machine.
	Host string `json:"host"`
	// Version is the version of the program's main module, followed by the VCS revision if known.
	Version string `json:"version"`
	// Go is the version of the toolchain that built the program.
	Go string `json:"go"`
	// Since is the time at which the page began counting.
	Since time.Time `json:"since"`
	// Ready reports whether every class is ready; see Node.SetReady.
	Ready bool `json:"ready"`
	// Usage is the CPU and memory usage of the process.
	Usage Usage `json:"usage"`
}

// A Usage describes the CPU and memory usage of a process.
type Usage struct {
	// CPU is the average number of processors used during the last CPUCovers, or 0 if unknown.
	// CPUCovers is at most a minute, or longer if there was no event and no Snapshot in the last
	// minute. Processors is the number of processors that may be used at the same time
	// (GOMAXPROCS).
	CPU        float64       `json:"cpu"`
	CPUCovers  time.Duration `json:"cpu_covers_ns"`
	Processors int           `json:"processors"`
	// Goroutines is the number of goroutines. Memory is the number of bytes that the Go runtime has
	// obtained from the system and not returned. Heap is the number of bytes of these that are
	// occupied by objects.
	Goroutines int   `json:"goroutines"`
	Memory     int64 `json:"memory"`
	Heap       int64 `json:"heap"`
}

// A Cause describes a problem.
type Cause struct {
	// Kind is "not ready", "limit", "no room at peer", "peer lost", "stuck stream", "stalled",
	// "leak", "errors" or "slow". Causes are sorted by Kind in this order. "slow" is less certain
	// than the others, because it is based on a comparison with earlier times.
	Kind string `json:"kind"`
	// Text describes the problem, the evidence for it, and the remedy.
	Text string `json:"text"`
	// Count is the number of affected calls, requests or streams, if any.
	Count int `json:"count,omitempty"`
	// Method and Peer are the affected method and the address of the affected peer, if the cause is
	// specific to one.
	Method string `json:"method,omitempty"`
	Peer   string `json:"peer,omitempty"`

	// holdKey identifies a cause that stays on the page for causeHoldTime after it was last found.
	// It is empty if the cause does not stay.
	holdKey string
}

// A Load holds the rates of the requests served, the calls made and the transfers started by this
// process.
type Load struct {
	// Requests holds the rates of the requests served by this process. Calls holds the rates of the
	// calls that it makes.
	Requests Rates `json:"requests"`
	Calls    Rates `json:"calls"`
	// Transfers holds the rates of transfers of package bulk that are not part of a request of
	// package qs.
	Transfers Rates `json:"transfers"`
}

// Rates holds statistics for the last minute and the last ten minutes.
type Rates struct {
	// Minute covers the last minute and TenMinutes the last ten minutes, or the time since the
	// start of the page if that is shorter.
	Minute     Window `json:"minute"`
	TenMinutes Window `json:"ten_minutes"`
	// History is the number of calls completed in each of the last 60 complete slots of ten
	// seconds, oldest first. There are fewer slots during the first ten minutes.
	History []uint32 `json:"history"`
}

// A Window holds statistics of the calls completed in the last minute or the last ten minutes.
type Window struct {
	// Covers is the length of the window, which is 60 to 70 s or 600 to 610 s, or the time since
	// the start of the page if that is shorter.
	Covers time.Duration `json:"covers_ns"`
	// Count is the number of completed calls, including failed ones. Errors is the number of failed
	// calls.
	Count  int64 `json:"count"`
	Errors int64 `json:"errors"`
	// PerSecond is the number of completed calls per second.
	PerSecond float64 `json:"per_second"`
	// Items is the number of items transferred in streams, including streams still in flight. Items
	// are counted when a Snapshot is taken. Those transferred between the last Snapshot and the
	// completion of a stream are not counted. The same applies to the bytes of items in Sent and
	// Received, except in Peer.Minute, which is complete.
	Items int64 `json:"items"`
	// Sent and Received are the numbers of bytes of input, output, items and memory.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Mean is the mean duration. P50, P90 and P99 are percentiles, with a relative error of at most
	// 1/8 between 512 ns and 275 s. Most is the maximum. All are 0 if no call completed.
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	Most time.Duration `json:"most_ns"`
}

// A Context describes a context of a class.
type Context struct {
	// ID is the target id of the context. Address is the address at which peers reach it.
	ID      int    `json:"id"`
	Address string `json:"address"`
	// Open reports whether the context is open.
	Open bool `json:"open"`
	// Active is the number of requests whose handlers have begun and that have not completed. It is
	// limited to MaxActive, and to MaxActivePerPeer for each session. Waiting is the number of
	// requests waiting because of these limits. Queued is the number of callbacks and handlers
	// waiting for Trigger.
	Active           int64 `json:"active"`
	MaxActive        int   `json:"max_active"`
	MaxActivePerPeer int   `json:"max_active_per_peer"`
	Waiting          int64 `json:"waiting"`
	Queued           int   `json:"queued"`
	// Streams is the number of requests with streams in flight, which are not included in Active.
	// It is limited to MaxStreams, and to MaxStreamsPerPeer for each session. Requests beyond these
	// limits are refused.
	Streams           int64 `json:"streams"`
	MaxStreams        int   `json:"max_streams"`
	MaxStreamsPerPeer int   `json:"max_streams_per_peer"`
	// Peers is the number of sessions that are up. The other fields count sessions that were
	// closed: Lost because the peer died or became unresponsive, Left because the peer closed, and
	// Idle because both sides agreed that the session was idle.
	Peers int   `json:"peers"`
	Lost  int64 `json:"lost"`
	Left  int64 `json:"left"`
	Idle  int64 `json:"idle"`
	// Denied is the number of requests denied by the authorizer. HandshakesFailed is the number of
	// failed TLS handshakes with peers; those over tcp are counted in the first context. The peers
	// and reasons are logged.
	Denied           int64 `json:"denied"`
	HandshakesFailed int64 `json:"handshakes_failed"`
	// Handles is the number of handles that are not closed plus the number of requests that have
	// not completed. Spare is the number of these without a call in flight.
	Handles int64 `json:"handles"`
	Spare   int64 `json:"spare"`
	// Regions is the number of registered memory regions of the class.
	Regions int64 `json:"regions"`
	// Lent is the number of bytes of large inputs and outputs that peers may fetch. Fetching is the
	// number of bytes being fetched from peers.
	Lent     int64 `json:"lent"`
	Fetching int64 `json:"fetching"`
	// Envelopes is the number of envelopes, of EnvelopeSize bytes each, offered to each peer. An
	// envelope is guaranteed room for one message. Reserved is the number of bytes guaranteed to
	// all peers, of at most Budget. HighWater is the maximum number of a peer's envelopes that this
	// process has needed at the same time. Stalls is the number of messages that have had to wait
	// for an envelope.
	Envelopes    int   `json:"envelopes"`
	EnvelopeSize int   `json:"envelope_size"`
	Reserved     int64 `json:"reserved"`
	Budget       int64 `json:"budget"`
	HighWater    int   `json:"high_water"`
	Stalls       int64 `json:"stalls"`
}

// A Call is a call, a request or a transfer in flight.
type Call struct {
	// Key identifies the call among all rows while it is in flight.
	Key string `json:"key"`
	// Kind is "call" for a call made by this process, "request" for a request served by it, and
	// "transfer" for a transfer of package bulk.
	Kind string `json:"kind"`
	// Context is the index of the context in Snapshot.Contexts.
	Context int `json:"context"`
	// ID identifies the call. It is the same on both sides.
	ID uint64 `json:"id"`
	// Method is the name of the method, or "pull" or "push" for a transfer.
	Method string `json:"method"`
	// Peer is a human-readable description of the peer. Address is its address, which identifies
	// it.
	Peer    string `json:"peer"`
	Address string `json:"address"`
	// State is one of the states in docs/internals/STATES.md. Means is a description of it.
	State string `json:"state"`
	Means string `json:"means"`
	// Age is the time since the start of the call or transfer, or since the arrival of the request.
	Age time.Duration `json:"age_ns"`
	// Late reports whether the age is unusual, that is, more than 100 ms and more than twice the
	// 99th percentile of the method. If fewer than 20 calls have completed, the limit is 1 s. A
	// stream is late if its caller has not read an item for 1 s.
	Late bool `json:"late"`
	// Moved is the number of bytes transferred from Sources and to Sinks, including up to 8 MiB of
	// read-ahead. Size is the total number of bytes to transfer, or 0 if unknown.
	Moved int64 `json:"moved"`
	Size  int64 `json:"size"`
	// Transfers is the number of transfers in flight that are part of the request.
	Transfers int `json:"transfers"`
	// Trace is the trace ID. TraceURL is the URL returned for it by Page.TraceURL.
	Trace    string `json:"trace,omitempty"`
	TraceURL string `json:"trace_url,omitempty"`
	// Stream is set only in Snapshot.Streams.
	Stream *Stream `json:"stream,omitempty"`

	session session
}

// A session is the key of a session with a peer: MaxActivePerPeer limits the calls of each session
// separately.
type session struct {
	context int
	peer    hg.Addr
}

// A Stream describes the progress of a stream.
type Stream struct {
	// Items is the number of items that the handler has sent or the caller has read. Bytes is the
	// number of bytes of items sent or received.
	Items int64 `json:"items"`
	Bytes int64 `json:"bytes"`
	// Waiting is the number of bytes buffered at this process, because the window is full or
	// because the caller has not read them.
	Waiting int64 `json:"waiting"`
	// Stuck is the time for which the caller has not read an item although data is buffered, or 0
	// if no data is buffered.
	Stuck time.Duration `json:"stuck_ns"`
}

// A Method holds statistics of the calls or the requests of a method.
type Method struct {
	// Kind has the same values as in Call.
	Kind string `json:"kind"`
	// Name is the name of the method. All methods beyond the first 256 are combined under the name
	// "(others)".
	Name string `json:"name"`
	// Count is the number of calls completed since the start of the page. Errors is the number of
	// those that failed. Most is the longest duration.
	Count  int64         `json:"count"`
	Errors int64         `json:"errors"`
	Most   time.Duration `json:"most_ns"`
	// UnderWay is the number of calls in flight, or of queued and running requests. Limit is the
	// maximum number of concurrent handlers of the method (qs.MaxConcurrent), or 0 if there is no
	// limit.
	UnderWay int `json:"under_way"`
	Limit    int `json:"limit"`
	Rates
	// Slowest describes the slowest call of the last ten minutes, if any.
	Slowest *Slowest `json:"slowest,omitempty"`

	usual Window // usual times of the method: its baseline, or those of the last ten minutes
	// slowSince is the time at which the method became slow, on the page's clock. It is 0 if the
	// method is not slow or became slow in the current slot.
	slowSince time.Duration
}

// A Slowest describes the slowest call of a method.
type Slowest struct {
	// Took is the duration of the call.
	Took time.Duration `json:"took_ns"`
	// Peer is a human-readable description of the peer.
	Peer string `json:"peer"`
	// Trace is the trace ID. TraceURL is the URL returned for it by Page.TraceURL.
	Trace    string `json:"trace,omitempty"`
	TraceURL string `json:"trace_url,omitempty"`
}

// An ErrorGroup describes the calls of a method that failed with the same code.
type ErrorGroup struct {
	// Kind and Method have the same meaning as in Call.
	Kind   string `json:"kind"`
	Method string `json:"method"`
	// Code is the numeric error code. Error is its text.
	Code  int    `json:"code"`
	Error string `json:"error"`
	// Count is the number of such errors since the start of the page. First and Last are the times
	// of the first and the last one.
	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// The following fields describe the last error. Text is the error message. Remote reports
	// whether the peer returned the error. Fate states whether the request ran.
	Text   string `json:"text"`
	Remote bool   `json:"remote"`
	Fate   string `json:"fate"`
	// Took is the duration of the call. Peer, Address, Trace and TraceURL have the same meaning as
	// in Call.
	Took     time.Duration `json:"took_ns"`
	Peer     string        `json:"peer"`
	Address  string        `json:"address"`
	Trace    string        `json:"trace,omitempty"`
	TraceURL string        `json:"trace_url,omitempty"`

	sinceLast time.Duration // time since the last error
}

// A Peer describes a session with another process.
type Peer struct {
	// Key identifies the session among all rows.
	Key string `json:"key"`
	// Context is the index of the context in Snapshot.Contexts.
	Context int `json:"context"`
	// Label is a human-readable description of the peer's name and location. Address is its
	// address, which identifies it.
	Label   string `json:"label"`
	Address string `json:"address"`
	// Process is the name reported by the peer. Remote is the peer's network address as seen by
	// this process. Verified is the name in the peer's certificate, or empty. Secure reports
	// whether the session is encrypted.
	Process  string `json:"process"`
	Remote   string `json:"remote"`
	Verified string `json:"verified"`
	Secure   bool   `json:"secure"`
	// Transport is the scheme of the transport in use. Why states why it was chosen, if there were
	// several.
	Transport string `json:"transport"`
	Why       string `json:"why"`
	// Requests is the number of requests from the peer in flight. Calls is the number of calls to
	// the peer in flight. Both include streams.
	Requests int `json:"requests"`
	Calls    int `json:"calls"`
	// Streams is the number of requests from the peer that are included in Context.Streams.
	Streams int64 `json:"streams"`
	// Minute holds statistics of the calls to and requests from the peer that completed in the last
	// minute. The library's own RPCs are included only if Query.All is set. There are no durations
	// and no items.
	Minute Window `json:"minute"`
	// Offered is the number of this process's envelopes that the peer may use. Held is the number
	// in use. HeldMax is the maximum number that were in use at the same time.
	Offered int `json:"offered"`
	Held    int `json:"held"`
	HeldMax int `json:"held_max"`
	// Promised is the number of envelopes that the peer guarantees to this process. Free is the
	// number of these not in use. Waiting is the number of messages waiting for an envelope. Stalls
	// is the number of messages that have had to wait so far. HighWater is the maximum number of
	// envelopes needed at the same time.
	Promised  int   `json:"promised"`
	Free      int   `json:"free"`
	Waiting   int   `json:"waiting"`
	Stalls    int64 `json:"stalls"`
	HighWater int   `json:"high_water"`
	// HeldBy is the limit that requests are waiting for at the peer, as reported by the peer. It is
	// empty if no requests are waiting.
	HeldBy string `json:"held_by,omitempty"`
	// Methods lists the 16 methods most recently used in calls to and requests from the peer, by
	// name. It is set only if Query.Peer is. The library's own methods are included only if
	// Query.All is set.
	Methods []PeerMethod `json:"methods,omitempty"`

	addr      hg.Addr // address bound to the session
	wasCalled bool    // Query.Method was called with the peer in the last ten minutes
}

// A PeerMethod holds the number of calls of a method with one peer.
type PeerMethod struct {
	// Kind and Name have the same meaning as in Method.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Minute is the number of calls completed in the last minute.
	Minute int `json:"minute"`
}
