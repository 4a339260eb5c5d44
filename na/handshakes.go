package na

// handshakeFailed counts a failed TLS handshake of a peer that has dialed, and logs the reason, at
// most once a second. The caller holds no lock, because the logger is the user's.
func (c *Context) handshakeFailed(peer, why string) {
	if skipped, ok := c.handshakeLog.Allow(c.Now()); ok {
		c.class.cfg.logger().Warn("na: a TLS handshake of a peer that connected has failed", "peer", peer, "reason", why, "more", skipped)
	}
	c.handshakes.Add(1) // after the log line, so that a count that is visible is in the log
}
