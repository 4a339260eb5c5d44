package na

// handshakeFailed counts a TLS handshake of a peer that has connected to this class and failed, and logs why, at most once a second.
// It is called with no lock held: the logger is the program's.
func (c *Context) handshakeFailed(peer, why string) {
	if skipped, ok := c.handshakeLog.Allow(c.Now()); ok {
		c.class.cfg.logger().Warn("na: a TLS handshake of a peer that connected has failed", "peer", peer, "reason", why, "more", skipped)
	}
	c.handshakes.Add(1) // counted before it is logged
}
