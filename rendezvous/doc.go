// Package rendezvous lets processes that start together find each other.
//
//	m, err := rendezvous.Start(ctx, rendezvous.Options{})    rank, size and server from the environment
//	peers, err := m.Exchange(ctx, rendezvous.Info{Addr: hctx.Self().String(), GER: 32})
//	...                                                      call peers[i].Addr
//	err = m.Leave()
//
//	qs run -n 4 -- ./program     four of them on this machine
//	srun -n 4 ./program          or wherever Slurm puts them
//
// A server (Serve, or "qs rendezvous") waits for a fixed number of members. Each member sends labelled parts; as soon as
// every member has sent a label, or has passed it by, all members receive the whole set. When all are done the startup is
// complete, and nobody needs the server any more: calls between the members do not pass through it.
//
// A startup either completes for every member or fails for every member. If somebody is missing when the time is up, the
// error names who.
//
// A Member has callbacks, which run in Trigger, and waits with a context for each. It is a request.Progressor. Server and
// members prove to each other that they know a secret, or use TLS; a secret alone does not keep strangers from reading.
//
// Package protocol has the state machines; this package adds sockets, goroutines and time limits. With Form set to
// protocol.Strict it speaks IMPI 0.0: see package impi.
//
// Not here: who is alive after the start. Calls say so when a peer is lost, and contrib/group does before.
package rendezvous
