package impi

// A pair is what the agent knows of one local and one remote process: IMPI's virtual channel, with a flow control of its own
// in each direction. There is at most one for each two processes of AgentConfig.
type pair struct {
	pairKey
	ready bool // it is in Agent.ready

	// What goes to the remote process.
	unacked int      // packets sent that no PROTOACK has accounted for
	answers []Packet // SYNCACKs and cancel replies
	acks    int      // PROTOACKs to send
	cancels []*Send  // whose cancel request has not left
	asked   int      // cancel requests to which no reply has come
	rest    []*Send  // long messages of which the rest may leave
	waiting []*Send  // of which nothing has left

	// What comes from it.
	received int                  // packets since the last PROTOACK
	held     int                  // packets that nobody has received
	newest   map[uint64]*envelope // by request number: the message that came last, if it is still held
}

type pairKey struct{ local, remote Proc }

func (a *Agent) pair(local, remote Proc) *pair {
	key := pairKey{local, remote}
	p := a.pairs[key]
	if p == nil {
		p = &pair{pairKey: key, newest: map[uint64]*envelope{}}
		a.pairs[key] = p
	}
	return p
}

// wake makes NextPacket look at p.
func (a *Agent) wake(p *pair) {
	if !p.ready && a.err == nil {
		p.ready = true
		a.ready = append(a.ready, p)
	}
}

// NextPacket appends the next packet to dst, with its data, and returns false when nothing may leave now. Pairs take turns. It
// copies the data. The bytes must be sent in the order in which they are returned, each of them.
func (a *Agent) NextPacket(dst []byte) ([]byte, bool) {
	for len(a.ready) > 0 {
		p := pop(&a.ready)
		packet, data, ok := a.next(p)
		if !ok {
			p.ready = false
			continue
		}
		a.ready = append(a.ready, p)
		packet.Src, packet.Dest = p.local, p.remote
		if packet.Type.counts() {
			p.unacked++
		}
		return append(packet.Append(dst), data...), true
	}
	if a.finishing && !a.finiSent && a.err == nil {
		a.finiSent = true
		fini := Packet{Type: PacketFini, Src: Proc{PID: -1}, Dest: Proc{PID: -1}}
		return fini.Append(dst), true
	}
	return dst, false
}

// next returns what p sends next. Only messages wait for the window. The others need no room at the peer, and a reply that
// waited for the receiver to receive could wait for the very process that waits for the reply.
func (a *Agent) next(p *pair) (packet Packet, data []byte, ok bool) {
	switch open := p.unacked < a.config.Hiwater; {
	case len(p.answers) > 0:
		return pop(&p.answers), nil, true
	case p.acks > 0:
		p.acks--
		return Packet{Type: PacketProtoAck}, nil, true
	case len(p.cancels) > 0 && p.asked < a.config.Hiwater:
		s := pop(&p.cancels)
		s.cancel = cancelAsked
		p.asked++
		return Packet{Type: PacketCancel, SrcRequest: s.Request}, nil, true
	case open && len(p.rest) > 0:
		s := p.rest[0]
		packet, data = s.part(a.config.MaxPacket)
		if s.off == len(s.Data) {
			pop(&p.rest)
			a.endSend(s, nil)
		}
		return packet, data, true
	case open && len(p.waiting) > 0:
		s := pop(&p.waiting)
		packet, data = s.part(a.config.MaxPacket)
		if packet.Type == PacketDataSync {
			s.state = sendExposed
		} else {
			a.endSend(s, nil)
		}
		return packet, data, true
	}
	return packet, nil, false
}

// part returns the next packet of s.
func (s *Send) part(maxPacket int) (Packet, []byte) {
	data := s.Data[s.off:min(len(s.Data), s.off+maxPacket)]
	p := Packet{
		Type:        PacketData,
		Len:         uint32(len(data)),
		SrcRequest:  s.Request,
		DestRequest: s.destReq,
		MsgLen:      uint64(len(s.Data)),
		Rank:        s.Rank,
		Tag:         s.Tag,
		Context:     s.Context,
		SeqNum:      s.seq,
		Count:       s.Count,
		Datatype:    s.Datatype,
	}
	if s.off == 0 && (s.Sync || len(s.Data) > maxPacket) {
		p.Type = PacketDataSync
	}
	s.off += len(data)
	return p, data
}
