package hg

import "github.com/quicksilver-rpc/quicksilver/na"

// What holds back a request that na knows and hg has not accepted. Its origin hears of it when it has waited for a while: na.Held. These
// are a service while it waits for room, for Run, and for the authorizer. They read counters only, since na has its lock.
type (
	waitsForRoom       service
	waitsForRun        service
	waitsForAuthorizer service
)

// HeldBy implements na.Holder.
func (s *waitsForRoom) HeldBy() na.Held {
	reason, limit := (*service)(s).fullLimit()
	return na.Held{Reason: reason, Active: int(limit), Limit: int(limit)}
}

// HeldBy implements na.Holder.
func (s *waitsForRun) HeldBy() na.Held {
	return na.Held{Reason: na.HeldWorkers, Active: int(s.ctx.load.n.Load())}
}

// HeldBy implements na.Holder.
func (s *waitsForAuthorizer) HeldBy() na.Held { return na.Held{Reason: na.HeldAuthorizer} }

// fullLimit returns the limit that keeps s from having room, all of which is in use; na.HeldProgram when there is room by now.
func (s *service) fullLimit() (reason na.HeldReason, limit int64) {
	d, b := &s.ctx.load, s.rpc.bound
	if b != nil && b.n.Load() >= b.most {
		return na.HeldMethod, b.most
	}
	ofPeer, _ := ofPeer(s.peerLoad.Load())
	switch active := d.n.Load(); {
	case ofPeer >= d.mostPerPeer:
		return na.HeldPerPeer, d.mostPerPeer
	case active >= d.most:
		return na.HeldTotal, d.most
	}
	return na.HeldProgram, 0
}
