// Package debug serves a web page about a running program. The page shows the causes of problems in
// words, the calls, requests, transfers and streams in flight with their age and state, methods
// with rates and percentiles, errors, and peers.
//
//	class ── Show ─────────────► sources ──┐
//	hg.Config.Observe ─ event ─► collector ┴─ read ─► Snapshot ─► ServeHTTP: HTML, text, JSON
//	                                                     └──────► Publish: expvar
//
// The page is built on demand from the state of package hg, which it does not modify. Only Observe
// adds to the cost of calls. The package starts no goroutines and no server, and the page loads no
// external resources. Anyone who can reach the page can see peer addresses, method names and error
// messages, unless Page.Guard denies access.
package debug
