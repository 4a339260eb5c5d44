// Package raftqs carries hashicorp/raft over Quicksilver. A [Transport] is a raft.Transport on a
// qs.Node.
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
// What always holds:
//
//   - Requests of one pipeline reach raft in the order in which they were sent, one at a time.
//   - A heartbeat never waits for the main loop of the follower, for a log entry that is being
//     written to disk, or for a snapshot.
//   - A snapshot is never held in memory as a whole: the leader reads ahead by 4 MiB, and the
//     follower pulls as fast as it writes. If either process fails, the other side's call ends
//     within the node's PeerTimeout, and at once if the connection breaks.
//   - Every call ends: with the node, with Close, with its timeout, or when the peer is lost.
//
// Several clusters may share a node: each Transport registers methods under the name of its
// Options.Cluster.
//
// Package raftqs neither opens nor serves the node, discovers no members, and stores nothing. The
// store in examples/kv does all of that. This is a module of its own, so that the library does not
// depend on raft.
package raftqs
