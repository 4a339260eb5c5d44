package impi

import "container/list"

// An envelope is a message that nobody has received: its first packet.
type envelope struct {
	packet Packet
	data   []byte
	pair   *pair
	elem   *list.Element // in Agent.held
}

// hold keeps a message until it is received or destroyed. It is the newest of its request number.
func (a *Agent) hold(e *envelope) {
	e.elem = a.held.PushBack(e)
	a.heldSize += int64(len(e.data))
	e.pair.held++
	e.pair.newest[e.packet.SrcRequest] = e
}

// unhold forgets a message. When it was the newest of its number none is: those before it are not attached to a request of the
// sender any more, so that no cancel may find them.
func (a *Agent) unhold(e *envelope) {
	a.held.Remove(e.elem)
	a.heldSize -= int64(len(e.data))
	e.pair.held--
	if e.pair.newest[e.packet.SrcRequest] == e {
		delete(e.pair.newest, e.packet.SrcRequest)
	}
}

// find returns the oldest message that is held and matches, or nil.
func (a *Agent) find(m *Match) *envelope {
	for elem := a.held.Front(); elem != nil; elem = elem.Next() {
		if e := elem.Value.(*envelope); m.matches(&e.packet) {
			return e
		}
	}
	return nil
}
