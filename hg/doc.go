// Package hg makes remote procedure calls and runs their callbacks.
//
//	h.Forward(in, cb)                                    Trigger ──► cb(h, err)
//	     │ header + codec                                   ▲ hg queue
//	     ▼                                                  │
//	na: post receive, send unexpected ─► wire ─► target:    │ Progress, Trigger (drain the na queue)
//	                                             request.go ─► hg queue ─► Trigger ──► handler(r) … r.Respond(out, cb)
//	     ┌───────────────────────── wire ◄─ na: send expected ◄───────────────────────────────────┘
//	     ▼
//	na: receive by tag ─► result.go decides the result when every part of the call has ended
//
// What always holds:
//   - A call that was accepted (Forward returned nil) runs its callback exactly once, inside
//     Trigger, on the goroutine that called Trigger, with no lock held. A Forward that returns an
//     error runs no callback.
//   - Cancel is local: it waits for no message, and a Trigger right after it runs the canceled
//     callback, whether the target is alive, frozen or gone. The handle may then be forwarded
//     again; a late response cannot reach it.
//   - Success wins over a cancel that is called after the whole response has arrived.
//   - Every two-way call is answered. An unknown RPC, input that cannot be decoded, and a handler
//     that fails, panics, or returns without a response all produce an error response.
//   - A call ends at its deadline ([Handle.SetTimeout]). After the deadline, by each side's own
//     clock, the request is not sent and its handler is not started.
//   - Every error carries the request's [Fate]: it did not run, it ran, or it may have run.
//
// Input and output may be larger than one message. The sender then leases the bytes to its peer,
// which reads them and returns the lease. A cancel, the loss of the peer and a late response end
// the lease, too.
//
// Package inspect has the data for observers and tools: events, gauges, calls in flight.
//
// Not in this package: retries, authentication (the transport verifies the peer's identity,
// Config.Authorize decides which calls it may make), bulk data (package bulk), requests that any
// callback completes (package request).
package hg
