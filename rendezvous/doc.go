// Package rendezvous exchanges addresses between processes that are started together.
//
//	m, err := rendezvous.Start(ctx, rendezvous.Options{})    rank, size and server from the environment
//	peers, err := m.Exchange(ctx, rendezvous.Info{Addr: hctx.Self().String(), GER: 32})
//	...                                                      call peers[i].Addr
//	err = m.Leave()
//
//	qs run -n 4 -- ./program     four processes on this machine
//	srun -n 4 ./program          or on the hosts that Slurm selects
//
// A server (Serve, or "qs rendezvous") waits for a fixed number of members. Each member submits labeled parts. Once
// every member has submitted a label, or a higher one, or is done, all members receive the whole set of its parts.
// When all members are done the startup is complete and the server is not needed any more: calls between the members
// do not pass through it.
//
// A startup either completes for every member or fails for every member. If members are missing at the deadline, the
// error lists their ranks.
//
// A Member has callbacks, which run in Trigger, and for each a variant that waits with a context. It is a
// request.Progressor. Server and members authenticate each other with a secret, or with TLS; a secret alone does not
// encrypt the connection.
//
// Package protocol has the state machines; this package adds sockets, goroutines and time limits. With Form set to
// protocol.Strict it implements IMPI 0.0; see package impi.
//
// The package does not track members after the start: calls fail when a peer is lost, and contrib/group detects
// failures before.
package rendezvous
