// Package inspect defines the data about a running program that package hg provides for metrics,
// pages, and tools: the completion of each call, the operations in progress, gauges, and the RPCs
// that a process serves.
//
//   - hg.Config.Observe receives an Event when a call, a request, or a transfer completes.
//   - hg.Context.Calls returns a Call for each operation in progress.
//   - hg.Class.Gauges returns the Gauges of each context. Other processes call the RPC "hg/gauges" and
//     decode its output with DecodeGauges. With GaugesRequest.Watch they also receive the calls in
//     progress and the counts of completed ones, and decode the output with DecodeActivity.
//   - The RPC "hg/rpcs" returns an RPC for each RPC that a process serves. Its output is decoded with
//     DecodeRPCs.
//
// Package hg imports this package, not vice versa, so a program that only reads data from other
// processes needs no class. The package has no state, and its functions are safe for concurrent
// use.
package inspect
