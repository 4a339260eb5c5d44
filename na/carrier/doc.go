// Package carrier is the contract between package na and the transports that move its frames: the
// interfaces that a plugin implements, and those that it uses. Plugins import this package and not
// na.
//
//	na.Open ──► Plugin.Open ──► Network             one per class: its name, the names of peers, the promises of the transport
//	na.NewContext ──► Network.NewCarrier ──► Carrier    one per context: connections to peers
//
//	        na's side                                   the plugin's side
//	Session.Pull   ◄── a Writer with room ────────  Carrier.Flush
//	Session.Deliver, Place, Placed  ◄── frames ───  received frames
//	Core.Admit, Session.Greet, Fail, Refused  ◄───  connections that arrive, succeed and end
//
// Package na decides which frames are sent: matching, flow control, cancellation, liveness. A
// Carrier decides their encoding, and when they are sent. For a network with reliable ordered
// streams of bytes between processes (anything with Dial and Listen of net.Conn) use package
// streamnet instead, which makes a plugin out of the two functions. Package na/natest is the
// conformance suite for plugins.
//
// # Header, Greeting and Bye
//
// These are aliases of types of an internal package, so that go doc shows no methods. A plugin
// uses:
//
//	h, err := ParseHeader(b)                            b has NeedHeader(b) bytes at least; checks the front
//	func (h *Header) Payload() int                      bytes of the payload
//	func (h *Header) Size() int                         bytes of the front: NeedHeader of it
//	func (h *Header) Append(dst, payload []byte) []byte
//	                                                    a frame of Writer.Frame: front, payload, and one checksum of both
//	func (h *Header) AppendFront(dst []byte, n int) []byte
//	                                                    the front of a piece of n bytes of Writer.Piece, with a checksum of its own
//	func (h *Header) Verify(b []byte) error             checks that one checksum; b is front and payload
//	h.Kind.Bulk()                                       the payload is placed (Session.Place), and not delivered
//	g, err := ParseGreeting(b); g.Target, g.Listen, g.Label
//	bye := ByeOf(err); words := bye.Words(); bye = ParseBye(words)
//
// Checks: ParseHeader checks kind, flags and length, and the checksum of a header that has one of
// its own: of a frame that is Bulk or has no payload. One checksum covers the header and the
// payload of every other frame, and the carrier checks it with Verify before Deliver: package na
// does not. The payload of a piece has no checksum. A length that ParseHeader accepts is 1 MiB at
// most; the carrier checks that it is no more than MaxWhole before it allocates a buffer for a
// whole frame, and that as many bytes have arrived. Place rejects a piece that is outside of its
// operation.
//
// # Locking
//
// A Core has one lock, which guards its sessions. Methods marked "Locked" are called with it held
// and do not wait; the others are called without it. A Carrier takes it with Lock to pass on
// received frames, and releases it with Unlock, which sends the frames that were queued since.
// Flush is called locked and returns locked, and may Pause around a system call or a copy. Neither
// side calls code of the program under the lock.
//
// # Promises of a transport
//
// Frames of one lane other than DATA arrive once, in their order, and none is missing while the
// session is up. Each byte of DATA arrives once and never before the PUT or GET that opened its
// operation: over an Exact network in any order, else in the order of the frames, and over an Exact
// network a CANCEL or DONE may overtake it. There is no order between two lanes. Damage or loss
// that cannot be repaired ends the session: Session.Fail.
//
// # Optional parts
//
// Stager, WriteMeter, Shelver, Reacher, Finisher, Prover, Locator, Peeker, Cutter and Certifier are
// optional interfaces. Class.Redirect is called by the network of a Companion with each HELLO,
// before its Target is read. A carrier with one connection per peer does not call Session.LaneUp
// and LaneDown: then all frames use the lane Messages. Session.Meets is for a network in which two
// sides that dial at the same time share one connection, Unproven for one in which a HELLO may have
// a forged source, PlaceOwn and PlacedOwn for a Reacher, Confirmed and Silent for a carrier that
// retransmits. A carrier that has each frame whole when it first sees it does not call
// Session.Heard either: Deliver and Place imply it.
//
// The contract is experimental until version 1.0: it may change between minor versions.
package carrier
