package impi

// A pair is the state of a pair of processes, one local and one remote. It corresponds to IMPI's virtual channel and
// has separate flow control in each direction. There is at most one pair for any two processes in AgentConfig.
type pair struct {
	pairKey
	ready bool // set while the pair is in Agent.ready

	// The following fields concern packets to the remote process.
	unacked      int      // number of packets sent but not acknowledged by a PROTOACK
	replies      []Packet // SYNCACKs and cancel replies to be sent
	acks         int      // number of PROTOACKs to be sent
	cancels      []*Send  // sends whose cancel request is to be sent
	cancelsAsked int      // number of cancel requests sent but not replied to
	matchedSends []*Send  // long messages whose remaining packets are to be sent
	queuedSends  []*Send  // messages whose first packet is to be sent

	// The following fields concern packets from the remote process.
	received int                  // number of packets received since the last PROTOACK
	held     int                  // number of held messages
	newest   map[uint64]*envelope // newest message by request number, if it is held
}

type pairKey struct{ local, remote Proc }

// pairOf returns the pair of the two processes, creating it if necessary.
func (a *Agent) pairOf(local, remote Proc) *pair {
	key := pairKey{local, remote}
	p := a.pairs[key]
	if p == nil {
		p = &pair{pairKey: key, newest: map[uint64]*envelope{}}
		a.pairs[key] = p
	}
	return p
}

// markReady adds p to the pairs from which NextPacket takes packets.
func (a *Agent) markReady(p *pair) {
	if !p.ready && a.err == nil {
		p.ready = true
		a.ready = append(a.ready, p)
	}
}

// NextPacket appends the next packet and its data to dst. It returns false if no packet may be sent now. Pairs take
// turns. The caller must send all returned bytes in order.
func (a *Agent) NextPacket(dst []byte) ([]byte, bool) {
	for len(a.ready) > 0 {
		p := popFirst(&a.ready)
		packet, data, ok := a.nextOf(p)
		if !ok {
			p.ready = false
			continue
		}
		a.ready = append(a.ready, p)
		packet.Src, packet.Dest = p.local, p.remote
		if packet.Type.isCounted() {
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

// nextOf returns the next packet of p. Only messages wait for the flow control window. Other packets are not held at
// the peer. Replies must not wait for a receive, because the process that would post it may itself be waiting for the
// reply.
func (a *Agent) nextOf(p *pair) (packet Packet, data []byte, ok bool) {
	switch open := p.unacked < a.config.Hiwater; {
	case len(p.replies) > 0:
		return popFirst(&p.replies), nil, true
	case p.acks > 0:
		p.acks--
		return Packet{Type: PacketProtoAck}, nil, true
	case len(p.cancels) > 0 && p.cancelsAsked < a.config.Hiwater:
		s := popFirst(&p.cancels)
		s.cancel = cancelAsked
		p.cancelsAsked++
		return Packet{Type: PacketCancel, SrcRequest: s.Request}, nil, true
	case open && len(p.matchedSends) > 0:
		s := p.matchedSends[0]
		packet, data = s.nextPacket(a.config.MaxPacket)
		if s.sent == len(s.Data) {
			popFirst(&p.matchedSends)
			a.endSend(s, nil)
		}
		return packet, data, true
	case open && len(p.queuedSends) > 0:
		s := popFirst(&p.queuedSends)
		packet, data = s.nextPacket(a.config.MaxPacket)
		if packet.Type == PacketDataSync {
			s.state = sendExposed
		} else {
			a.endSend(s, nil)
		}
		return packet, data, true
	}
	return packet, nil, false
}

// nextPacket returns the next packet of s and its data, and counts the data as sent.
func (s *Send) nextPacket(maxPacket int) (Packet, []byte) {
	data := s.Data[s.sent:min(len(s.Data), s.sent+maxPacket)]
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
	if s.sent == 0 && (s.Sync || len(s.Data) > maxPacket) {
		p.Type = PacketDataSync
	}
	s.sent += len(data)
	return p, data
}
