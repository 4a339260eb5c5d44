// Package load makes many calls of one method, and reports their latencies and the outcome of those that failed.
//
// Each of Config.Connections workers runs an event loop on its own goroutine, with one connection to each node. In each
// iteration it sends the calls that are due, makes progress and records the completed calls. After the run, the
// recordings of all workers are combined into a Result.
//
// A lane is the set of calls that one worker makes to one node, with its share of the concurrency and the rate. Inputs
// are encoded before the run, and outputs are not decoded, so that the measurements include little time of the caller.
//
// In a closed loop, which is the default, each of Config.Concurrency calls is followed by the next when it completes. A
// call's latency is measured from the time at which it was sent. A server that stalls receives fewer calls, so the
// stall affects few latencies.
//
// In an open loop, which is used if Config.Rate is set, call number i is due i/Rate seconds after the start, regardless
// of earlier calls. Its latency is measured from the time at which it was due. A stall therefore affects the latency of
// every call that was due during the stall, which avoids coordinated omission. In both loops, the service time is
// measured from the time at which the call was sent.
//
// Latencies of successful calls are recorded in histograms with three significant digits. Failed calls have a separate
// histogram and are counted by code and fate.
package load
