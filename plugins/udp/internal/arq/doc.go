// Package arq makes datagrams reliable (automatic repeat request). It is sans-IO: packets and the
// time go in, packets and a deadline come out.
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
//   - A packet number is delivered at most once, and those of lane 0 in order; una <= ack <= nxt.
//   - The bytes of packets that are kept, for retransmission or for reordering, are counted and limited.
//   - A peer that has not shown that it receives gets no more bytes than it has sent.
//   - Only an acknowledgment of something new resets a timer. A timer that expires sends at most two packets (probes), and the
//     answer shows what is lost.
//   - Between two sides of profile Modern a packet that the peer has acknowledged is not sent again.
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
// The package has no sockets, goroutines, clocks, random sources or locks: the caller has them. It
// has no priorities between peers either. Encryption and changes of a peer's address belong to the
// layer below.
package arq
