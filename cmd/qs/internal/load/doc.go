// Package load makes many calls of one method, and reports how long they took and what became of those that failed.
//
//	                     ┌─ worker: one goroutine, one connection to each node ─┐
//	schedule ─► lanes ─► │ step: send what is due ─► Progress, Trigger ─► ended │ ─► recorder ─┐
//	                     └──────────────────────────────────────────────────────┘              ├─► Result ─► Report, Compare
//	                                       … Config.Connections of them                        ┘
//
// A lane is the calls of one worker to one node: it has its share of the concurrency and of the rate. Inputs are encoded before the
// run, and outputs are not decoded, so that little of what is measured is the cost of this side.
//
// In a closed loop, without Config.Rate, each of Config.Concurrency calls is followed by the next when it has ended, and its latency
// begins when it is sent: a server that stalls is asked less, and the stall is in few latencies. In an open loop call number i is due at
// i/Rate, whatever became of those before it, and its latency begins when it is due: a stall is in the latency of every call that was
// due meanwhile (no coordinated omission). The service time begins at the send in both.
//
// Latencies are in histograms of three significant digits. They are those of calls that succeeded; the calls that failed are counted by
// code and fate, and have a histogram of their own.
package load
