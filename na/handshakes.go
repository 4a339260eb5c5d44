package na

// HandshakeFailed counts a TLS handshake of a peer that has connected to this class and failed, and logs why, at most once a second.
// It is called with no lock held: the logger is the program's.
func (h *Host) HandshakeFailed(peer, why string) {
	if skipped, ok := h.handshakeLog.Allow(h.Context().Now()); ok {
		h.class.cfg.Log().Warn("na: a TLS handshake of a peer that connected has failed", "peer", peer, "reason", why, "more", skipped)
	}
	h.handshakes.Add(1) // counted before it is logged
}
