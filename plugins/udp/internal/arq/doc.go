// Package arq implements reliable delivery over datagrams (automatic repeat request). It performs
// no I/O itself: its inputs are packets and the time, and its outputs are packets and a deadline.
//
//	Frame, Piece        Deliver, Place, Sent, Room            the carrier: sockets, views, package na
//	     │                     ▲
//	     ▼                     │
//	┌─ Assoc: one peer ──────────────────────────────┐
//	│ lane 0  frames, copied; delivered in order     │  lane0.go
//	│ lane 1  bulk, borrowed; placed in any order    │  lane1.go
//	│ acknowledgments, losses, timers                │  ack.go loss.go rto.go
//	│ window, release; profile seed: go-back-n       │  cc.go fin.go goback.go
//	└────────────────────────────────────────────────┘
//	     │ Next                ▲ Receive
//	     ▼                     │
//	  Machine: all peers of one socket; HELLO, cookies, identities   machine.go handshake.go mtu.go
//	     │                     ▲
//	  datagrams             datagrams                                packet.go
//
// Invariants:
//   - Each packet number is delivered at most once, and lane 0 is delivered in order; una <= ack <= nxt.
//   - The bytes of packets retained for retransmission or reordering are counted and limited.
//   - A peer that has not shown that it receives at its address is sent no more bytes than it has sent.
//   - Only an acknowledgment of something new resets a timer. An expired timer sends at most two
//     packets (probes), and the answer shows what was lost.
//   - If both sides use profile Modern, a packet that the peer has acknowledged is not sent again.
//
// The states of an association:
//
//	 Dial                                  HELLO
//	   │                                     │ Admit
//	   ▼      ACCEPT, or a crossing HELLO    ▼     any packet of the peer
//	dialing ──────────────────► open ◄───── half
//	   │                         │ Finish, or the peer's FIN   │
//	   │                         ▼                             │
//	   │                     finishing: acknowledge; when all is acknowledged, FIN
//	   │                         │ both FINs acknowledged      │
//	   │                         ▼                             │
//	   │                     lingering: acknowledge once more  │
//	   ▼                         ▼                             ▼
//	  dead ◄── Cut, REFUSE, RESET, too many timeouts, Finish takes too long
//
// The package uses no sockets, goroutines, clocks, random sources or locks, which are left to the
// caller. It does not prioritize peers. Encryption, and changes of a peer's address, are handled by
// the layer below.
package arq
