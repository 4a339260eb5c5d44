// Package streamnet makes a plugin for any network that has reliable, ordered streams of bytes,
// from a function that dials a net.Conn and one that listens: Unix sockets, vsock, QUIC streams,
// SSH channels and connections through a proxy, for example.
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
// List the plugin in na.Config.Plugins (for a node in qs.Config.HG.NA.Plugins), or register it for
// every class of the process with carrier.Register. Then "unix:///run/app.sock" is an address like
// any other: listen there, look it up, call it.
//
// In a test, natest.TestPlugin checks such a plugin. Without Options.Verify its natest.Network has
// Unverified set.
//
//	na: Session, Core ◄─► internal/netconn: a goroutine that reads, one that writes ◄─► Options.Dial, Options.Listen: net.Conn
//
// # What a net.Conn must do
//
//   - Read and Write may be called by two goroutines at the same time, and Close, which ends both,
//     by a third.
//   - Deadlines work: a Read or Write that waits returns an error that matches
//     os.ErrDeadlineExceeded after the deadline. The plugin limits the time for a HELLO and for
//     the last frame with them.
//   - Bytes arrive once, in order and undamaged, or not at all: then Read returns an error. Frame
//     headers and messages have checksums; bulk data has none.
//   - RemoteAddr and LocalAddr may return nil: then na.Identity.Remote is empty.
//   - A method CloseWrite is optional: with it a peer that is rejected gets the reason even if it
//     is still sending.
//
// A *tls.Conn may be returned by both functions. The plugin runs the handshake, within
// Options.HandshakeTimeout, and the proven identity is in na.Context.Identity. Set Options.Secure
// if every connection is one. For other means of authentication return a net.Conn that implements
// carrier.Prover.
//
// # What always holds
//
// Each session has one connection and two goroutines. Bulk data shares the connection with
// messages. No read or write that may wait uses memory of an operation: a cancel releases the
// memory at once. Half-open connections are limited in number and in time. If a session ends while
// Dial runs, the context of Dial is canceled. When a class closes, the last frames are written by
// goroutines that end by themselves, within 0.1 s.
//
// For a network that has datagrams, shared memory, or its own flow control implement package
// carrier instead.
package streamnet
