// Package inspect defines the data about a running program that package hg provides for metrics,
// pages, and tools: the completion of each call, the operations in progress, gauges, and the RPCs
// that a process serves.
//
//	hg.Config.Observe ◄── Event ── completion of a call, a request, or a transfer
//	hg.Context.Calls ───► Call ─── one in progress
//	hg.Class.Gauges ────► Gauges ─ of a context ─── RPC "hg/gauges" ─► DecodeGauges
//	                      Activity: with calls, and what completes while a tool watches ─ RPC "hg/gauges" with GaugesRequest.Watch ─► DecodeActivity
//	                      RPC ──── one that is served ─ RPC "hg/rpcs" ─► DecodeRPCs
//
// Package hg imports this package, not vice versa, so a program that only reads data from other
// processes needs no class. The package has no state, and its functions are safe for concurrent
// use.
package inspect
