package hg

import "github.com/quicksilver-rpc/quicksilver/internal/heldby"

// What holds back a request that na knows and hg has not accepted. Its origin learns it, as a heldby.State, when the request has waited for a while. These
// are a service while it waits for room, for Run, and for the authorizer. They read counters only, since na has its lock.
type (
	waitsForRoom       service
	waitsForRun        service
	waitsForAuthorizer service
)

// HeldBy implements heldby.Holder.
func (s *waitsForRoom) HeldBy() heldby.State {
	reason, limit := (*service)(s).fullLimit()
	return heldby.State{Reason: reason, Active: int(limit), Limit: int(limit)}
}

// HeldBy implements heldby.Holder.
func (s *waitsForRun) HeldBy() heldby.State {
	return heldby.State{Reason: heldby.Workers, Active: int(s.ctx.admission.active.Load())}
}

// HeldBy implements heldby.Holder.
func (s *waitsForAuthorizer) HeldBy() heldby.State { return heldby.State{Reason: heldby.Authorizer} }

// fullLimit returns the limit that keeps s from having room, all of which is in use; heldby.Program when there is room by now.
func (s *service) fullLimit() (reason heldby.Reason, limit int64) {
	d, b := &s.ctx.admission, s.rpc.methodLimit
	if b != nil && b.active.Load() >= b.maxActive {
		return heldby.Method, b.maxActive
	}
	ofPeer, _ := splitLoad(s.peerLoad.Load())
	switch active := d.active.Load(); {
	case ofPeer >= d.maxPerPeer:
		return heldby.PerPeer, d.maxPerPeer
	case active >= d.maxActive:
		return heldby.Total, d.maxActive
	}
	return heldby.Program, 0
}
