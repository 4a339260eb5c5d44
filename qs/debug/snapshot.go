package debug

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Snapshot is what a page shows, and its JSON. Times whose names end in _ns are in nanoseconds.
// Lists are cut to Query.Limit.
type Snapshot struct {
	// Time is when it was made.
	Time time.Time `json:"time"`
	// Process identifies the program.
	Process Process `json:"process"`
	// Query is the query, with its defaults.
	Query Query `json:"query"`
	// Observed reports whether the page counts calls that have ended, by Attach or Observe. Without
	// that, Methods and Errors are empty.
	Observed bool `json:"observed"`
	// Causes are the detected problems, the worst first and the less certain ones last.
	Causes []Cause `json:"causes"`
	// Load is the sum of all methods, without those of the library unless Query.All.
	Load Load `json:"load"`
	// Contexts are the contexts of the classes on the page.
	Contexts []Context `json:"contexts"`
	// Calls are the calls, requests and other transfers in flight, the oldest first, without
	// Streams.
	Calls List[Call] `json:"calls"`
	// Streams are the calls and requests with a stream in flight: first those whose caller has read
	// no item for 1 s, then the oldest.
	Streams List[Call] `json:"streams"`
	// Methods counts the finished calls since the start of the page, by method and kind.
	Methods List[Method] `json:"methods"`
	// Errors counts the failed calls, by method, kind and code.
	Errors List[ErrorGroup] `json:"errors"`
	// Peers are the sessions that are up.
	Peers List[Peer] `json:"peers"`
}

// A List is a page of the rows of a list.
type List[T any] struct {
	// Total is the number of rows that match the query.
	Total int `json:"total"`
	// Rows are the rows from Query.Offset on, at most Query.Limit.
	Rows []T `json:"rows"`
}

// A Process is a running program.
type Process struct {
	// Name is the name of the node (qs.Config.Name), else that of the program.
	Name string `json:"name"`
	// PID is the number of the process.
	PID int `json:"pid"`
	// Host is the name of the machine.
	Host string `json:"host"`
	// Version is that of the program's module, with the revision if that is known.
	Version string `json:"version"`
	// Go is the version of the toolchain that built the program.
	Go string `json:"go"`
	// Since is when the page began to count.
	Since time.Time `json:"since"`
	// Ready reports whether every class is ready: see Node.SetReady.
	Ready bool `json:"ready"`
	// Usage is the process's use of the machine.
	Usage Usage `json:"usage"`
}

// A Usage is the CPU time and the memory that a process uses.
type Usage struct {
	// CPU is how many processors it has used on average in the last CPUCovers, a minute or less, or
	// longer if there was no event and no Snapshot in that time; 0 if that is not known. Processors
	// is how many it may use at a time (GOMAXPROCS).
	CPU        float64       `json:"cpu"`
	CPUCovers  time.Duration `json:"cpu_covers_ns"`
	Processors int           `json:"processors"`
	// Goroutines counts them. Memory is bytes that the Go runtime has of the system, Heap those of
	// them in objects of the program.
	Goroutines int   `json:"goroutines"`
	Memory     int64 `json:"memory"`
	Heap       int64 `json:"heap"`
}

// A Cause describes a problem.
type Cause struct {
	// Kind is one of "not ready", "limit", "no room at peer", "peer lost", "stuck stream",
	// "stalled", "leak", "errors", "slow", in this order. "slow" is less certain than the others:
	// it compares times with earlier ones.
	Kind string `json:"kind"`
	// Text describes the problem, the values that show it, and the remedy.
	Text string `json:"text"`
	// Count is the number of affected calls, requests or streams, if any.
	Count int `json:"count,omitempty"`
	// Method and Peer are the affected method and peer, if the cause affects one; Peer is as in
	// Call.Address.
	Method string `json:"method,omitempty"`
	Peer   string `json:"peer,omitempty"`

	// identifies a cause that comes and goes, which stays on the page for causeHoldTime; empty for
	// the others
	holdKey string
}

// A Load sums up all requests that this process serves, and all calls that it makes.
type Load struct {
	// Requests are those that this process serves, Calls those that it makes.
	Requests Rates `json:"requests"`
	Calls    Rates `json:"calls"`
	// Transfers are those of package bulk that belong to no request of package qs.
	Transfers Rates `json:"transfers"`
}

// Rates are the rates of the last minute and of the last ten minutes.
type Rates struct {
	// Minute is the last minute, TenMinutes the last ten, or the time since the start of the page.
	Minute     Window `json:"minute"`
	TenMinutes Window `json:"ten_minutes"`
	// History has the number of finished calls in each of the last 60 complete slots of ten
	// seconds, oldest first. At the beginning it has fewer slots.
	History []uint32 `json:"history"`
}

// A Window sums up the calls that ended in the last minute or in the last ten minutes.
type Window struct {
	// Covers is the length of the window: 60 to 70 s, or 600 to 610 s, or the time since the start
	// of the page.
	Covers time.Duration `json:"covers_ns"`
	// Count is the number of finished calls, Errors the number of failed ones among them.
	Count  int64 `json:"count"`
	Errors int64 `json:"errors"`
	// PerSecond is Count per second.
	PerSecond float64 `json:"per_second"`
	// Items counts the items of streams, also of streams that have not ended, as of the last
	// Snapshot: those between the last Snapshot and the end of a stream are missing. The same holds
	// for the bytes of items in Sent and Received, but those of peers are complete.
	Items int64 `json:"items"`
	// Sent and Received are bytes of input, output, items and memory.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Mean is the mean time. P50, P90 and P99 are percentiles, with an error of at most an eighth
	// from 512 ns to 275 s. Most is the maximum. All are 0 if no call ended.
	Mean time.Duration `json:"mean_ns"`
	P50  time.Duration `json:"p50_ns"`
	P90  time.Duration `json:"p90_ns"`
	P99  time.Duration `json:"p99_ns"`
	Most time.Duration `json:"most_ns"`
}

// A Context is one of a class.
type Context struct {
	// ID is its target id, Address where peers reach it.
	ID      int    `json:"id"`
	Address string `json:"address"`
	// Open reports whether it is not closed.
	Open bool `json:"open"`
	// Active counts requests whose handlers have begun and that have not ended, of MaxActive at the
	// most, and of MaxActivePerPeer of one session. Waiting counts requests that wait for one of
	// these to end, Queued callbacks and handlers that wait for Trigger.
	Active           int64 `json:"active"`
	MaxActive        int   `json:"max_active"`
	MaxActivePerPeer int   `json:"max_active_per_peer"`
	Waiting          int64 `json:"waiting"`
	Queued           int   `json:"queued"`
	// Streams counts requests with streams that have not ended, which Active does not: of
	// MaxStreams at the most, and of MaxStreamsPerPeer of one session. One more is refused.
	Streams           int64 `json:"streams"`
	MaxStreams        int   `json:"max_streams"`
	MaxStreamsPerPeer int   `json:"max_streams_per_peer"`
	// Peers counts sessions that are up. Those that were and ended: Lost died or fell silent, Left
	// closed, Idle ended as both agreed.
	Peers int   `json:"peers"`
	Lost  int64 `json:"lost"`
	Left  int64 `json:"left"`
	Idle  int64 `json:"idle"`
	// Denied counts requests that the authorizer has denied, HandshakesFailed the TLS handshakes of
	// peers that failed; the first context has those over tcp. The log has the peers and the
	// reasons.
	Denied           int64 `json:"denied"`
	HandshakesFailed int64 `json:"handshakes_failed"`
	// Handles counts handles that are not closed, and requests that have not ended; Spare is how
	// many of these have no call under way.
	Handles int64 `json:"handles"`
	Spare   int64 `json:"spare"`
	// Regions counts registered memory of the class.
	Regions int64 `json:"regions"`
	// Lent is the bytes of large input and output that peers may fetch, Fetching those that are
	// being fetched from peers.
	Lent     int64 `json:"lent"`
	Fetching int64 `json:"fetching"`
	// Envelopes of EnvelopeSize bytes are offered to each peer. Reserved is the bytes that are
	// guaranteed to all, of Budget. HighWater is the largest number of envelopes of one peer that
	// this side has needed, Stalls counts messages that had to wait for one.
	Envelopes    int   `json:"envelopes"`
	EnvelopeSize int   `json:"envelope_size"`
	Reserved     int64 `json:"reserved"`
	Budget       int64 `json:"budget"`
	HighWater    int   `json:"high_water"`
	Stalls       int64 `json:"stalls"`
}

// A Call is a call, a request or a transfer that is under way.
type Call struct {
	// Key identifies it among all rows, as long as it is under way.
	Key string `json:"key"`
	// Kind is "call" for a call that this process makes, "request" for one that it serves,
	// "transfer" for one of package bulk.
	Kind string `json:"kind"`
	// Context is the index of its context in Contexts.
	Context int `json:"context"`
	// ID is the same at both sides of a call.
	ID uint64 `json:"id"`
	// Method is "pull" or "push" of a transfer.
	Method string `json:"method"`
	// Peer is the other side as text for users, Address its address, which identifies it.
	Peer    string `json:"peer"`
	Address string `json:"address"`
	// State is the state in docs/internals/STATES.md, Means its description.
	State string `json:"state"`
	Means string `json:"means"`
	// Age is the time since the start of a call or a transfer, or the arrival of a request.
	Age time.Duration `json:"age_ns"`
	// Late reports whether the age is unusual: more than twice the 99th percentile of its method,
	// and more than 100 ms; or more than 1 s if fewer than 20 calls have ended. A stream is late if
	// its caller has read no item for 1 s.
	Late bool `json:"late"`
	// Moved is the number of bytes transferred from its Sources and to its Sinks, including up to 8
	// MiB of read-ahead. Size is the total number, 0 if it is unknown.
	Moved int64 `json:"moved"`
	Size  int64 `json:"size"`
	// Transfers is the number of its transfers in flight.
	Transfers int `json:"transfers"`
	// Trace is the id of its trace, TraceURL the URL that Page.TraceURL returns for it.
	Trace    string `json:"trace,omitempty"`
	TraceURL string `json:"trace_url,omitempty"`
	// Stream is set in Streams only.
	Stream *Stream `json:"stream,omitempty"`

	session session
}

// A session identifies a session of a context: MaxActivePerPeer limits the handlers of one.
type session struct {
	context int
	peer    hg.Addr
}

// A Stream is the progress of a stream.
type Stream struct {
	// Items is the number of items that the handler sent, or that the caller's loop read; Bytes is
	// the number of bytes sent or received.
	Items int64 `json:"items"`
	Bytes int64 `json:"bytes"`
	// Waiting is the number of buffered bytes: those that cannot be sent because the window is
	// full, or those that the caller's loop has not read.
	Waiting int64 `json:"waiting"`
	// Stuck is the time for which the caller has read no item while data is buffered; 0 if none is.
	Stuck time.Duration `json:"stuck_ns"`
}

// A Method sums up the calls, or the requests, of a method.
type Method struct {
	// Kind is as in Call.
	Kind string `json:"kind"`
	// Name is the name of the method, "(others)" for all beyond the first 256.
	Name string `json:"name"`
	// Count is the number of calls that ended since the start of the page, Errors the number of
	// failed ones among them. Most is the longest time.
	Count  int64         `json:"count"`
	Errors int64         `json:"errors"`
	Most   time.Duration `json:"most_ns"`
	// UnderWay is the number of calls, or of queued and running requests. Limit is the limit of
	// running handlers of the method (qs.MaxConcurrent); 0 if there is none.
	UnderWay int `json:"under_way"`
	Limit    int `json:"limit"`
	Rates
	// Slowest is the slowest call of the last ten minutes, if any.
	Slowest *Slowest `json:"slowest,omitempty"`

	usual Window // the baseline: times of the minutes before the last one that were not slow
	// when it became slow, by the clock of the page; 0 if it is not, or since this minute
	slowSince time.Duration
}

// A Slowest is the slowest call of a method.
type Slowest struct {
	// Took is its duration.
	Took time.Duration `json:"took_ns"`
	// Peer is as in Call.
	Peer string `json:"peer"`
	// Trace and TraceURL are as in Call.
	Trace    string `json:"trace,omitempty"`
	TraceURL string `json:"trace_url,omitempty"`
}

// An ErrorGroup counts the calls of a method that failed with one code.
type ErrorGroup struct {
	// Kind and Method are as in Call.
	Kind   string `json:"kind"`
	Method string `json:"method"`
	// Code is the number of the code, Error its text.
	Code  int    `json:"code"`
	Error string `json:"error"`
	// Count is the number of such errors since the start of the page, from First to Last.
	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// The following fields describe the last error. Text is its text. Remote reports whether the
	// peer returned it. Fate is the fate of the request.
	Text   string `json:"text"`
	Remote bool   `json:"remote"`
	Fate   string `json:"fate"`
	// Took is the duration of the call. Peer, Address, Trace and TraceURL are as in Call.
	Took     time.Duration `json:"took_ns"`
	Peer     string        `json:"peer"`
	Address  string        `json:"address"`
	Trace    string        `json:"trace,omitempty"`
	TraceURL string        `json:"trace_url,omitempty"`

	sinceLast time.Duration // the time since the last one
}

// A Peer is a session with another process.
type Peer struct {
	// Key identifies the peer among all rows.
	Key string `json:"key"`
	// Context is the index of its context in Contexts.
	Context int `json:"context"`
	// Label is its name and its location as text for users, Address its address, which identifies it.
	Label   string `json:"label"`
	Address string `json:"address"`
	// Process is the name that the peer claims. Remote is its network address as seen here.
	// Verified is the name in its certificate, or empty. Secure reports whether the session is
	// encrypted.
	Process  string `json:"process"`
	Remote   string `json:"remote"`
	Verified string `json:"verified"`
	Secure   bool   `json:"secure"`
	// Transport is the scheme of the transport in use, Why the reason if there was a choice.
	Transport string `json:"transport"`
	Why       string `json:"why"`
	// Requests is the number of its requests in flight, Calls the number of calls to it. Both
	// include streams.
	Requests int `json:"requests"`
	Calls    int `json:"calls"`
	// Streams is the number of Requests that count in Context.Streams.
	Streams int64 `json:"streams"`
	// Minute counts the calls and requests with it that ended in the last minute, without RPCs of
	// the library unless Query.All; it has no times and no items.
	Minute Window `json:"minute"`
	// Offered is the number of envelopes that the peer may use here, Held the number in use,
	// HeldMax the maximum of Held.
	Offered int `json:"offered"`
	Held    int `json:"held"`
	HeldMax int `json:"held_max"`
	// Promised is the number of envelopes that the peer guarantees to this side, Free the number of
	// free ones. Waiting is the number of messages waiting for one, Stalls the number of all that
	// waited. HighWater is the largest number of envelopes needed at a time.
	Promised  int   `json:"promised"`
	Free      int   `json:"free"`
	Waiting   int   `json:"waiting"`
	Stalls    int64 `json:"stalls"`
	HighWater int   `json:"high_water"`
	// HeldBy is the limit for which requests wait at the peer, as the peer reports; empty if none
	// waits.
	HeldBy string `json:"held_by,omitempty"`
	// Methods are the last 16 that it called, or was called at, by their names, if Query.Peer is
	// set; those of the library if Query.All is.
	Methods []PeerMethod `json:"methods,omitempty"`

	addr      hg.Addr // bound to the session
	wasCalled bool    // Query.Method, in the last ten minutes
}

// A PeerMethod counts the calls of a method with one peer.
type PeerMethod struct {
	// Kind and Name are as in Method.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Minute is the number of calls that ended in the last minute.
	Minute int `json:"minute"`
}
