// Package carrier defines the contract between package na and the transports that move its frames:
// the interfaces that a plugin implements and those that it uses. Plugins import this package
// rather than na.
//
//	na.Open ──► Plugin.Open ──► Network             one per class: its name, the names of peers, the promises of the transport
//	na.NewContext ──► Network.NewCarrier ──► Carrier    one per context: connections to peers
//
//	        na's side                                   the plugin's side
//	Session.Pull   ◄── a Writer with room ────────  Carrier.Flush
//	Session.Deliver, Place, Placed  ◄── frames ───  received frames
//	Core.Admit, Session.Greet, Fail, Refused  ◄───  connections that are accepted, established, and closed
//
// Package na decides which frames to send, handling matching, flow control, cancellation, and
// liveness. A Carrier decides how to encode them and when to send them. For a network with reliable
// ordered byte streams between processes (anything that offers Dial and Listen for net.Conn), use
// package streamnet instead, which builds a plugin from these two functions. Package na/natest is
// the conformance suite for plugins.
//
// # Header, Greeting and Bye
//
// These are aliases for types in an internal package, so go doc does not show their methods. The
// front of a frame is everything before its payload. A plugin uses:
//
//	h, err := ParseHeader(b)                            b must hold at least NeedHeader(b) bytes; checks the front
//	func (h *Header) Payload() int                      length of the payload in bytes
//	func (h *Header) Size() int                         length of the front in bytes, as returned by NeedHeader
//	func (h *Header) Append(dst, payload []byte) []byte
//	                                                    appends a frame for Writer.Frame: front, payload, and one checksum of both
//	func (h *Header) AppendFront(dst []byte, n int) []byte
//	                                                    appends the front of a piece of n bytes for Writer.Piece, with a separate checksum
//	func (h *Header) Verify(b []byte) error             checks the checksum of both; b is front and payload
//	h.Kind.Bulk()                                       reports whether the payload is placed (Session.Place) rather than delivered
//	g, err := ParseGreeting(b); g.Target, g.Listen, g.Label
//	bye := ByeOf(err); words := bye.Words(); bye = ParseBye(words)
//
// ParseHeader checks the kind, flags, and length. It also checks the checksum of a header that has
// a separate one, which is the case for frames that are Bulk or have no payload. In all other
// frames a single checksum covers the header and the payload. The carrier must check it with Verify
// before Deliver, because package na does not. The payload of a piece has no checksum. ParseHeader
// accepts lengths up to 1 MiB. Before it allocates a buffer for a whole frame, the carrier must
// check that the length is no more than MaxWhole, and it must check that as many bytes have
// arrived. Place rejects a piece that is outside its operation.
//
// # Locking
//
// A Core has one lock, which guards its sessions. Methods marked "Locked" are called with this lock
// held and must not wait. All others are called without it. A Carrier acquires the lock with Lock
// to pass on received frames, and releases it with Unlock, which sends the frames queued in the
// meantime. Flush is called locked and returns locked, and may Pause around a system call or a
// copy. Neither side calls user code with the lock held.
//
// # Promises of a transport
//
// Frames of one lane, other than DATA, arrive exactly once and in order, and none is missing while
// the session is up. Each byte of DATA arrives exactly once and never before the PUT or GET that
// started its operation. Over an Exact network, DATA bytes may arrive in any order, and a CANCEL or
// DONE may overtake them. Over other networks they arrive in frame order. There is no ordering
// between the two lanes. Damage or loss that cannot be repaired closes the session; see
// Session.Fail.
//
// # Optional parts
//
// Stager, WriteMeter, Shelver, Reacher, Finisher, Prover, Locator, Peeker, Cutter, and Certifier
// are optional interfaces. The network of a Companion calls Class.Redirect with each HELLO before
// reading its Target. A carrier with one connection per peer does not call Session.LaneUp and
// LaneDown, and all frames then use the Messages lane. Session.Meets is for networks in which two
// sides that dial at the same time share one connection. Unproven is for networks in which a HELLO
// may have a forged source. PlaceOwn and PlacedOwn are for Reachers, and Confirmed and Silent are
// for carriers that retransmit. A carrier that first sees each frame when it is complete does not
// call Session.Heard either, because Deliver and Place imply it.
//
// The contract is experimental until version 1.0 and may change between minor versions.
package carrier
