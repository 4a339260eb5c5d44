// Package raftqs carries hashicorp/raft over Quicksilver: a [Transport] is a raft.Transport on a qs.Node.
//
//	raft ── RequestVote, RequestPreVote, TimeoutNow ──► a call each ────────────────────────┐
//	     ── AppendEntries without entries ──► a call of its own method, the heartbeat ─────┤      ┌─► the heartbeat handler of raft
//	     ── AppendEntriesPipeline ──► one call: requests up, responses down, in order ─────┼─ node ─┤
//	     ── InstallSnapshot ──► a call that lends the snapshot; the follower pulls it ──────┘      └─► Consumer: the main loop of raft
//
// What always holds:
//
//   - Requests of one pipeline reach raft in the order in which they were sent, one at a time.
//   - A heartbeat never waits for the main loop of the follower, for a log entry that is written to disk, or for a snapshot.
//   - A snapshot is never held in memory: the leader reads ahead by 4 MiB, the follower pulls as fast as it writes. When either process
//     is gone, both sides end within the node's PeerTimeout, and at once if the connection breaks.
//   - Every call ends: with the node, with Close, with its timeout, or when the peer is lost.
//
// Several clusters may share a node: each Transport has the methods of its Options.Cluster.
//
// Package raftqs neither opens nor serves the node, finds no members, and stores nothing. examples/kv is a store that does all of that. It is a
// module of its own, so that the library does not depend on raft.
package raftqs
