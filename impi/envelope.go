package impi

import "container/list"

// An envelope is the first packet of a message that is not received.
type envelope struct {
	packet Packet
	data   []byte
	pair   *pair
	elem   *list.Element // in Agent.heldMessages
}

// holdMessage keeps a message until it is received or destroyed. It is now the newest message of its request number.
func (a *Agent) holdMessage(e *envelope) {
	e.elem = a.heldMessages.PushBack(e)
	a.heldSize += int64(len(e.data))
	e.pair.held++
	e.pair.newest[e.packet.SrcRequest] = e
}

// removeHeld removes a held message. If it was the newest of its request number, there is none now: older messages do
// not belong to an active request of the sender any more, so a cancel must not find them.
func (a *Agent) removeHeld(e *envelope) {
	a.heldMessages.Remove(e.elem)
	a.heldSize -= int64(len(e.data))
	e.pair.held--
	if e.pair.newest[e.packet.SrcRequest] == e {
		delete(e.pair.newest, e.packet.SrcRequest)
	}
}

// findHeld returns the oldest held message that m matches, or nil.
func (a *Agent) findHeld(m *Match) *envelope {
	for elem := a.heldMessages.Front(); elem != nil; elem = elem.Next() {
		if e := elem.Value.(*envelope); m.matches(&e.packet) {
			return e
		}
	}
	return nil
}
