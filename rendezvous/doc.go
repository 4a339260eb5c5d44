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
// A server (Serve, or "qs rendezvous") waits for a fixed number of members. Each member submits parts, each under a
// label. Once every member has submitted a label or a higher one, or is done, all members receive the set of all
// parts under that label. When all members are done, the startup is complete and the server is no longer needed.
// Calls between the members do not go through it.
//
// A startup either completes for every member or fails for every member. If members are missing when the deadline
// expires, the error lists their ranks.
//
// Each operation of a Member has a variant with a callback, which runs in Trigger, and a variant that takes a context
// and waits. A Member implements request.Progressor. The server and the members authenticate each other with a secret
// or with TLS. A secret alone does not encrypt the connection.
//
// Package protocol contains the state machines. This package adds sockets, goroutines and timeouts. With Form set to
// protocol.Strict it implements IMPI 0.0. See package impi.
//
// The package does not track members after the startup. Calls fail when a peer is lost. contrib/group detects
// failures earlier.
package rendezvous
