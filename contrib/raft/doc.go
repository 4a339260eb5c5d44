// Package raftqs implements the transport of hashicorp/raft on Quicksilver. A [Transport] is a
// raft.Transport on a qs.Node.
//
//	raft sends                        carried by                    received by
//	RequestVote, RequestPreVote  ──►  a call each              ──►  main loop of raft
//	TimeoutNow                   ──►  a call                   ──►  main loop of raft
//	AppendEntries                ──►  a call                   ──►  main loop of raft
//	AppendEntries as heartbeat   ──►  a call of its own method ──►  heartbeat handler
//	AppendEntriesPipeline        ──►  a call with two streams  ──►  main loop of raft
//	InstallSnapshot              ──►  a call that lends data   ──►  main loop of raft
//
// The main loop of raft receives from [Transport.Consumer].
//
// The package guarantees the following:
//
//   - Requests of one pipeline reach raft in the order in which they were sent, one at a time.
//   - A heartbeat never waits for the follower's main loop, for a log entry that is being written
//     to disk, or for a snapshot.
//   - A snapshot is never held in memory as a whole. The leader reads ahead by at most 4 MiB, and
//     the follower pulls data as fast as it writes it. If either process fails, the other side's
//     call ends within the node's PeerTimeout, or at once if the connection breaks.
//   - Every call ends when the node closes, when Close is called, when its timeout expires, or when
//     the peer is lost.
//
// Several clusters may share a node. Each Transport registers methods under the name in its
// Options.Cluster.
//
// Package raftqs does not open or serve the node, discover members, or store any data. The store in
// examples/kv does all of that. It is a separate module so that the library does not depend on
// raft.
package raftqs
