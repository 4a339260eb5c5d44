package impi

import "container/list"

// An envelope holds the first packet of a message that has not been received.
type envelope struct {
	packet Packet
	data   []byte
	pair   *pair
	elem   *list.Element // in Agent.heldMessages
}

// holdMessage holds a message until it is received or destroyed. The message becomes the newest one with its request
// number.
func (a *Agent) holdMessage(e *envelope) {
	e.elem = a.heldMessages.PushBack(e)
	a.heldSize += int64(len(e.data))
	e.pair.held++
	e.pair.newest[e.packet.SrcRequest] = e
}

// removeHeld removes a held message. If it was the newest one with its request number, a cancel request with that
// number no longer applies to any message, because older messages with the number do not belong to an active send.
func (a *Agent) removeHeld(e *envelope) {
	a.heldMessages.Remove(e.elem)
	a.heldSize -= int64(len(e.data))
	e.pair.held--
	if e.pair.newest[e.packet.SrcRequest] == e {
		delete(e.pair.newest, e.packet.SrcRequest)
	}
}

// findHeld returns the oldest held message that matches m, or nil.
func (a *Agent) findHeld(m *Match) *envelope {
	for elem := a.heldMessages.Front(); elem != nil; elem = elem.Next() {
		if e := elem.Value.(*envelope); m.matches(&e.packet) {
			return e
		}
	}
	return nil
}
