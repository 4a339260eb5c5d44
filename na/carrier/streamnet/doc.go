// Package streamnet creates a plugin for any network with reliable, ordered byte streams from two
// functions, one that dials a net.Conn and one that listens. Examples are Unix sockets, vsock, QUIC
// streams, SSH channels, and connections through a proxy.
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
// List the plugin in na.Config.Plugins (for a node, in qs.Config.HG.NA.Plugins), or register it for
// all classes of the process with carrier.Register. Then "unix:///run/app.sock" is an address like
// any other that can be listened on, looked up, and called.
//
// In tests, use natest.TestPlugin to check such a plugin. If Options.Verify is not set, set
// Unverified in its natest.Network.
//
//	na: Session, Core ◄─► internal/netconn: a goroutine that reads, one that writes ◄─► Options.Dial, Options.Listen: net.Conn
//
// # What a net.Conn must do
//
//   - Read and Write may be called concurrently by two goroutines, and Close by a third. Close
//     makes both of them return.
//   - Deadlines work: a waiting Read or Write returns an error that matches
//     os.ErrDeadlineExceeded after the deadline. The plugin uses deadlines to limit the time
//     for a HELLO and for the last frame.
//   - Bytes arrive once, in order, and undamaged, or not at all, in which case Read returns an
//     error. Frame headers and messages have checksums. Bulk data has none.
//   - RemoteAddr and LocalAddr may return nil, in which case na.Identity.Remote is empty.
//   - A CloseWrite method is optional. It allows a peer that is rejected to receive the reason
//     even if it is still sending.
//
// Both functions may return a *tls.Conn. The plugin runs the handshake within
// Options.HandshakeTimeout, and the proven identity is available from na.Context.Identity. Set
// Options.Secure if every connection is a *tls.Conn. For other means of authentication, return a
// net.Conn that implements carrier.Prover.
//
// # What always holds
//
// Each session has one connection and two goroutines. Bulk data shares the connection with
// messages. Reads and writes that may wait never use the memory of an operation, so a cancel
// releases the memory immediately. Half-open connections are limited in number and duration. If a
// session is closed while Dial is running, the context passed to Dial is canceled. When a class is
// closed, the last frames are written by goroutines that terminate by themselves within 0.1 s.
//
// For a network with datagrams, shared memory, or its own flow control, implement package carrier
// instead.
package streamnet
