// Package arq makes datagrams reliable: packets and the time go in, packets and a deadline come out.
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
// What always holds: a packet number is delivered at most once, and lane 0 in order; una <= ack <= nxt; bytes that are
// retained, or kept out of order, are counted and bounded; a peer that has not shown that it receives is sent no more than it has sent;
// only an acknowledgment of something new resets a timer, and a timer that expires sends two packets at most. Its answer says what is lost, and
// what the peer has is not sent again, unless one of the two sides is of profile Seed.
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
// There are no sockets, goroutines, clocks and random sources here, and no locks: the caller has them. Not here either:
// priorities between peers, and encryption and peers whose address changes, which the user may put below.
package arq
