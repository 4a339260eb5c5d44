// Package load makes many calls of one method, and reports their latencies and the outcome of those that failed.
//
//	                     ┌─ worker: one goroutine, one connection to each node ─┐
//	schedule ─► lanes ─► │ step: send what is due ─► Progress, Trigger ─► ended │ ─► recorder ─┐
//	                     └──────────────────────────────────────────────────────┘              ├─► Result ─► Report, Compare
//	                                       … Config.Connections of them                        ┘
//
// A lane is the set of calls from one worker to one node, with its share of the concurrency and the rate. Inputs are
// encoded before the run, and outputs are not decoded, so that little of the measured time is spent on this side.
//
// In a closed loop, which is the default without Config.Rate, each of Config.Concurrency calls is followed by the next
// when it completes. A call's latency is measured from its send. A server that stalls receives fewer calls, so the
// stall affects few latencies. In an open loop, call number i is due at i/Rate, regardless of earlier calls, and its
// latency is measured from the time at which it was due. A stall therefore affects the latency of every call that was
// due during it (no coordinated omission). In both loops the service time is measured from the send.
//
// Latencies are recorded in histograms with three significant digits. They cover the calls that succeeded. Calls that
// failed are counted by code and fate, and have a separate histogram.
package load
