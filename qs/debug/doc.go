// Package debug serves a page about a running program: the causes of problems, in words; the calls,
// requests, transfers and streams under way with age and state; methods with rates and percentiles;
// errors; and its peers.
//
//	class ── Show ─────────────► sources ──┐
//	hg.Config.Observe ─ ends ──► collector ┴─ look ─► Snapshot ─► ServeHTTP: HTML, text, JSON
//	                                                     └──────► Publish: expvar
//
// It asks package hg when somebody looks, and changes nothing; calls cost more only where Observe
// is set. It starts no goroutine and no server, and loads nothing from elsewhere. Anyone who can
// reach the page sees addresses of peers, names of methods and texts of errors, unless Page.Guard
// refuses.
package debug
