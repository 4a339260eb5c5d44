// Package debug is a page for people about a program that runs: its peers, the calls, requests and transfers that are under way
// with age and state, envelopes, methods, and recent errors.
//
//	class ── Show ─────────────► Page ─► ServeHTTP: HTML, text, JSON
//	hg.Config.Observe ─ ends ──►   └───► Publish: expvar
//
// It sits above package hg and asks it when somebody looks; a call costs a little only where Observe is set. It has no goroutine and
// no server of its own, and changes nothing. Whoever can reach it sees addresses of peers and names of methods.
package debug
