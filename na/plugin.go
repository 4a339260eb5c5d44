package na

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Plugin is a transport, such as the one returned by plugins/tcp.New. Package carrier documents
// how to implement one.
type Plugin = carrier.Plugin

// Limits holds the limits of a class.
type Limits struct {
	MaxUnexpected int    // maximum bytes of one unexpected message
	MaxExpected   int    // maximum bytes of one expected message
	MaxTag        Tag    // highest valid tag
	MaxSegments   int    // maximum segments of one Mem
	MaxContexts   int    // maximum contexts of one class
	Envelopes     int    // number of envelopes guaranteed to each peer (GER)
	Scheme        string // address scheme of the plugin
}

// Stats holds the gauges and counters of one context.
type Stats struct {
	Peers       int   // number of sessions that are up
	BulkFlows   int   // number of sessions with a bulk connection in addition to the message connection
	Outstanding int   // number of operations waiting for peers
	Envelopes   int   // number of unexpected messages not yet accepted
	Queued      int   // number of sends waiting for an envelope or for room
	Leases      int   // number of active leases
	Streams     int   // number of open streams, in both directions
	Regions     int64 // number of registered regions of the class
	// number of messages withdrawn by peers, or dropped by closing a context, before they were
	// accepted
	Withdrawn   int64
	LateDropped int64 // number of messages and chunks dropped because they belong to no operation
	Violations  int64 // number of sessions closed because the peer violated the protocol
	Panics      int64 // number of library panics recovered while handling data from peers; please report the logged panic
	// number of sessions lost because the peer died, fell silent, violated the protocol, or declared
	// this side lost
	PeersLost int64
	PeersLeft int64 // number of sessions that the peer closed with a notice, whether orderly or not
	PeersIdle int64 // number of sessions closed by mutual agreement because they were idle
	// PeersRetired counts the sessions retired because a certificate expired. Later operations use
	// another session.
	PeersRetired int64
	Stalls       int64 // number of sends for which no envelope was available, whether they waited or failed
	Reserved     int64 // bytes of envelopes and room currently guaranteed to peers
	// HandshakesFailed counts failed TLS handshakes of peers that dialed the class. With tcp, only
	// the first context counts them.
	HandshakesFailed int64
	// HighWater is the highest PeerStats.HighWater of all sessions, including closed ones.
	HighWater int
}

// findPlugin returns the plugin for scheme. It searches given first and then the registered
// plugins.
func findPlugin(scheme string, given []Plugin) (Plugin, error) {
	for _, p := range given {
		if p.Scheme() == scheme {
			return p, nil
		}
	}
	p, have := carrier.Find(scheme)
	if p != nil {
		return p, nil
	}
	for _, p := range given {
		have = append(have, p.Scheme())
	}
	return nil, unknownScheme(scheme, have)
}

// unknownScheme returns the error for a scheme that has no plugin. have lists the known schemes.
func unknownScheme(scheme string, have []string) error {
	if len(have) == 0 {
		return fmt.Errorf("na: unknown transport %q: no plugin registered (import plugins/all): %w", scheme, ErrUnsupported)
	}
	slices.Sort(have)
	return fmt.Errorf("na: unknown transport %q: have %s: %w", scheme, strings.Join(have, ", "), ErrUnsupported)
}

// brokenContract returns the error for a plugin that violates the contract of package carrier.
func brokenContract(scheme, what string) error {
	return WithText(ErrInvalid, fmt.Sprintf("na: plugin %s://: %s (plugin bug)", scheme, what))
}

// checkNetwork returns an error if a required field of n is not set.
func checkNetwork(scheme string, n *carrier.Network) error {
	switch {
	case n.Names == nil:
		return brokenContract(scheme, "Network.Names is nil")
	case n.NewCarrier == nil:
		return brokenContract(scheme, "Network.NewCarrier is nil")
	}
	return nil
}
