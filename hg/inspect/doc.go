// Package inspect defines the data about a running program that package hg provides for metrics,
// pages and tools: the end of each call, what is under way, gauges, and the RPCs that a process
// serves.
//
//	hg.Config.Observe ◄── Event ── the end of a call, a request or a transfer
//	hg.Context.Calls ───► Call ─── one that is under way
//	hg.Class.Gauges ────► Gauges ─ of a context ─── RPC "hg/gauges" ─► DecodeGauges
//	                      Activity: with calls, and what ends while a tool looks ─ RPC "hg/gauges" with GaugesRequest.Watch ─► DecodeActivity
//	                      RPC ──── that is served ─ RPC "hg/rpcs" ───► DecodeRPCs
//
// Package hg imports it, and not the other way round: a program that only reads what others tell
// needs no class. It holds no state, and its functions may be called from any goroutine.
package inspect
