package hg

import "github.com/quicksilver-rpc/quicksilver/internal/heldby"

// These types implement heldby.Holder, through which package na obtains the reason why hg has not
// yet accepted a request. The origin is notified of the reason if the request waits for long. Each
// type is a service that waits for one thing: admission, Run, or the authorizer. Their methods only
// read atomic counters, because package na calls them with its lock held.
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

// fullLimit returns the kind and the value of the limit that keeps s from being admitted. If no
// limit is reached anymore, the kind is heldby.Program.
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
