package na

// handshakeFailed counts a failed TLS handshake of an incoming connection, and logs the reason at
// most once per second. The caller must not hold a lock, because handshakeFailed calls the user's
// logger.
func (c *Context) handshakeFailed(peer, why string) {
	if skipped, ok := c.handshakeLog.Allow(c.Now()); ok {
		c.class.cfg.logger().Warn("na: TLS handshake of an incoming connection failed", "peer", peer, "reason", why, "more", skipped)
	}
	c.handshakes.Add(1) // after the log line, so that every failure counted has been logged
}
