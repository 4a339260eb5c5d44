// Package streamnet makes a plugin of any network that has reliable, ordered streams of bytes: of a function that dials a net.Conn
// and one that listens. Unix sockets, vsock, QUIC streams, SSH channels and connections through a proxy are plugins this way.
//
//	var Plugin = streamnet.New(streamnet.Options{
//		Scheme: "unix",
//		Dial: func(ctx context.Context, name string) (net.Conn, error) {
//			var d net.Dialer
//			return d.DialContext(ctx, "unix", name)
//		},
//		Listen: func(where string) (net.Listener, string, error) {
//			l, err := net.Listen("unix", where)
//			return l, where, err
//		},
//	})
//
// Give the plugin to a class in na.Config.Plugins (to a node in qs.Config.HG.NA.Plugins), or register it for every class of the process
// with carrier.Register. Then "unix:///run/app.sock" is an address like any other: listen there, look it up, call it.
//
// In a test, natest.TestPlugin checks such a plugin. Without Options.Verify its natest.Network has Unverified set.
//
//	na: Session, Core ◄─► internal/netconn: a goroutine that reads, one that writes ◄─► Options.Dial, Options.Listen: net.Conn
//
// # What a net.Conn must do
//
//   - Read and Write may be called at the same time by two goroutines, and Close by a third, which ends both.
//   - Deadlines work: a Read or Write that waits returns an error that matches os.ErrDeadlineExceeded once the deadline has passed. The plugin bounds
//     with them how long a HELLO and the last frame may take.
//   - Bytes arrive once, in order and undamaged, or not at all: then Read returns an error. Frame headers and messages have checksums; bulk
//     data has none.
//   - RemoteAddr and LocalAddr may return nil: then na.Identity.Remote is empty.
//   - With a method CloseWrite a peer that is turned away is told why, also when it is still sending.
//
// A *tls.Conn may be returned by both functions. Its handshake is made here, within Options.HandshakeTimeout, and what it has proven is in
// na.Context.Identity. Set Options.Secure if every connection is one. What else authenticates peers gives a net.Conn that
// implements carrier.Prover.
//
// # What always holds
//
// Each session has one connection and two goroutines. Bulk data shares the connection with messages. No
// read or write that may wait has memory of an operation: a cancel releases it at once. Half-open connections are bounded in number
// and in time. A session that is given up while Dial runs cancels the context of Dial. When a class closes, the last frames are
// written by goroutines that end by themselves, within 0.1 s.
//
// A network that has datagrams, shared memory, or its own credit implements package carrier instead.
package streamnet
