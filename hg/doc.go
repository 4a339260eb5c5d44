// Package hg makes remote procedure calls and runs their callbacks.
//
//	h.Forward(in, cb)                                    Trigger ──► cb(h, err)
//	     │ header + codec                                   ▲ hg queue
//	     ▼                                                  │
//	na: post receive, send unexpected ─► wire ─► target:    │ Progress, Trigger (drain the na queue)
//	                                             request.go ─► hg queue ─► Trigger ──► handler(r) … r.Respond(out, cb)
//	     ┌───────────────────────── wire ◄─ na: send expected ◄───────────────────────────────────┘
//	     ▼
//	na: receive by tag ─► result.go determines the result when every part of the call has completed
//
// The package guarantees the following:
//
//   - If Forward accepts a call by returning nil, the callback runs exactly once, inside Trigger,
//     on the goroutine that called Trigger, with no locks held. If Forward returns an error, no
//     callback runs.
//   - Cancel is local. It waits for no message, and a Trigger immediately after it runs the
//     callback of the canceled call, whether the target is alive, frozen, or gone. The handle may
//     then be forwarded again; a late response cannot reach it.
//   - Cancel has no effect on a call whose complete response has already arrived.
//   - Every two-way call is answered. An unknown RPC, input that cannot be decoded, and a handler
//     that fails, panics, or returns without a response all produce an error response.
//   - A call ends at its deadline ([Handle.SetTimeout]). After the deadline, by each side's own
//     clock, the request is not sent and its handler is not started.
//   - Every error carries the request's [Fate]: it did not run, it ran, or it may have run.
//
// Input and output may be larger than one message. The sender then leases the bytes to its peer,
// which reads them and returns the lease. The lease also ends when the call is canceled, the peer
// is lost, or the response arrives too late.
//
// Package inspect defines the data for observers and tools: events, gauges, and calls in flight.
//
// This package does not provide retries, authentication (the transport verifies the peer's
// identity, and Config.Authorize decides which calls it may make), bulk data (package bulk), or
// requests that any callback can complete (package request).
package hg
