// Package carrier is the contract between package na and what moves its frames: what a plugin is, what it implements, and
// what it is given. It is a leaf: plugins import this package and not na.
//
//	na.Open ──► Plugin.Open ──► Network             one per class: its name, how peers are found, what the transport promises
//	na.NewContext ──► Network.NewCarrier ──► Carrier    one per context: connections to peers
//
//	        na's side                                   the plugin's side
//	Session.Pull   ◄── a Writer with room ────────  Carrier.Flush
//	Session.Deliver, Place, Placed  ◄── frames ───  what it has received
//	Core.Admit, Session.Greet, Fail, Refused  ◄───  connections that come, succeed and end
//
// Package na decides what is sent: matching, flow control, cancellation, liveness. A Carrier decides how it looks on the way,
// and when there is room. A plugin that has reliable ordered streams of bytes between processes (anything with Dial and Listen
// of net.Conn) needs none of this: package streamnet makes a plugin out of the two functions. Package na/natest is the suite that
// every plugin passes.
//
// # Locking
//
// A Core has one lock, which guards its sessions. Methods marked "Locked" are called with it held and do not wait; the others are
// called without it. A Carrier takes it with Lock around what it received, and returns it with Unlock, which sends what has
// been queued meanwhile. Flush is called locked and returns locked, and may Pause around a system call or a copy. Neither side calls code of the
// program under the lock.
//
// # Promises of a transport
//
// Frames of one lane other than DATA arrive once, in their order, and none is missing while the session is up. Each byte of DATA
// arrives once and never before the PUT or GET that opened its operation: over an Exact network in any order, else in the order of the frames, and
// over an Exact network a CANCEL or DONE may overtake it. Between two lanes nothing is promised. Damage or loss that
// cannot be made good is the end of the session: Session.Fail.
//
// The contract is experimental until version 1.0: it may change between minor versions.
package carrier
