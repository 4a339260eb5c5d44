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
//   - The origin of a two-way call always gets an answer: an unknown RPC, input that cannot be decoded, a handler that
//     fails, panics, or returns without a response all produce an error response.
//   - A call whose time is up ([Handle.SetTimeout]) ends, and neither leaves nor begins later than that at either end, by
//     that end's clock.
//   - Every error says the call's [Fate]: it did not run, it ran, or it may have run.
//
// Input and output larger than one message travel without the user noticing: the sender lends the bytes to its peer,
// which reads them and gives them back; a cancel, a loss of the peer or a late response ends the loan too.
//
// Not here: retries, authentication (the transport says who a peer is, Config.Authorize what it may call), streaming, bulk data
// (package bulk), requests that any callback completes (package request).
package hg
