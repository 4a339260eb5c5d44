// Package debug serves a page about a running program: its peers, the calls, requests and transfers under way with their age and
// state, envelopes, methods, and recent errors.
//
//	class ── Show ─────────────► Page ─► ServeHTTP: HTML, text, JSON
//	hg.Config.Observe ─ ends ──►   └───► Publish: expvar
//
// It asks package hg when somebody looks, and changes nothing; calls cost more only where Observe is set. It starts no goroutine and
// no server. Anyone who can reach the page sees addresses of peers and names of methods.
package debug
