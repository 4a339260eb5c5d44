package na

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Plugin is a transport, such as plugins/tcp.New returns. Package carrier documents how to
// implement one.
type Plugin = carrier.Plugin

// Limits are the limits of a class.
type Limits struct {
	MaxUnexpected int    // bytes of one unexpected message
	MaxExpected   int    // bytes of one expected message
	MaxTag        Tag    // highest tag
	MaxSegments   int    // segments of one Mem
	MaxContexts   int    // contexts of one class
	Envelopes     int    // envelopes guaranteed to each peer (GER)
	Scheme        string // the scheme of the plugin
}

// Stats are the gauges and counters of one context.
type Stats struct {
	Peers       int   // sessions that are up
	BulkFlows   int   // sessions with a connection for bulk data beside that for messages
	Outstanding int   // operations that wait for peers
	Envelopes   int   // unexpected messages that were not accepted
	Queued      int   // sends that wait for an envelope or for room
	Leases      int   // leases that have not ended
	Streams     int   // streams of calls in both directions that have not ended
	Regions     int64 // registered regions of the class
	// messages that peers have withdrawn, or a closed context has dropped, before they were
	// accepted
	Withdrawn   int64
	LateDropped int64 // messages and chunks that were dropped because they belong to no operation
	Violations  int64 // sessions that ended because the peer broke the protocol
	Panics      int64 // recovered panics of the library while handling data from peers; please report the log
	// sessions that were lost: the peer died, was silent, broke the protocol, or declared this side
	// lost
	PeersLost int64
	PeersLeft int64 // sessions that the peer has closed with a message, in order or not
	PeersIdle int64 // sessions that ended by agreement because they were idle
	// PeersRetired counts sessions that have retired because a certificate has expired: later
	// operations use another session.
	PeersRetired int64
	Stalls       int64 // sends that had to wait for an envelope, or failed because there was none
	Reserved     int64 // bytes of envelopes and room that are guaranteed to peers now
	// HandshakesFailed counts failed TLS handshakes of peers that have dialed the class. For tcp
	// the first context has the count.
	HandshakesFailed int64
	// HighWater is the highest PeerStats.HighWater of all sessions, including those that have
	// ended.
	HighWater int
}

// findPlugin returns the plugin of a scheme, from given or else from the registered ones.
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

// unknownScheme returns the error for a scheme without a plugin. have lists the known schemes.
func unknownScheme(scheme string, have []string) error {
	if len(have) == 0 {
		return fmt.Errorf("na: unknown transport %q: no plugin registered (import plugins/all): %w", scheme, ErrUnsupported)
	}
	slices.Sort(have)
	return fmt.Errorf("na: unknown transport %q: have %s: %w", scheme, strings.Join(have, ", "), ErrUnsupported)
}

// brokenContract returns the error for a plugin that breaks the contract of package carrier.
func brokenContract(scheme, what string) error {
	return WithText(ErrInvalid, fmt.Sprintf("na: plugin %s://: %s (plugin bug)", scheme, what))
}

// checkNetwork returns an error if a network lacks a required field.
func checkNetwork(scheme string, n *carrier.Network) error {
	switch {
	case n.Names == nil:
		return brokenContract(scheme, "Network.Names is nil")
	case n.NewCarrier == nil:
		return brokenContract(scheme, "Network.NewCarrier is nil")
	}
	return nil
}
