// Package hg forwards remote procedure calls and runs their callbacks.
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
//   - A call that was accepted (Forward returned nil) runs its callback exactly once, inside Trigger, on the goroutine
//     that called Trigger, with no lock held. A Forward that returns an error runs no callback.
//   - Cancel is local: it sends nothing that it waits for, and Trigger right after it runs the canceled callback, whether
//     the target is alive, frozen or gone. The handle may then be forwarded again; a late response cannot reach it.
//   - Success wins over a cancel that comes after the whole response has arrived.
//   - Every two-way call is answered. An unknown RPC, input that cannot be decoded, and a handler that fails, panics, or returns
//     without a response all produce an error response.
//   - A call ends at its deadline ([Handle.SetTimeout]). After it, by each side's own clock, the request is not sent and its
//     handler is not started.
//   - Every error carries the request's [Fate]: it did not run, it ran, or it may have run.
//
// Input and output may be larger than one message. The sender then lends the bytes to its peer, which reads them and gives them
// back. A cancel, the loss of the peer and a late response end the loan, too.
//
// What observers and tools are told is in package inspect: events, gauges, calls under way.
//
// Not here: retries, authentication (the transport says who a peer is, Config.Authorize what it may call), streaming, bulk data
// (package bulk), requests that any callback completes (package request).
package hg
