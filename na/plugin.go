package na

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Plugin is one kind of network, as plugins/tcp makes with New. Package carrier says what one implements.
type Plugin = carrier.Plugin

// Limits tells what a plugin can do.
type Limits struct {
	MaxUnexpected int    // bytes of one unexpected message
	MaxExpected   int    // bytes of one expected message
	MaxTag        Tag    // highest tag
	MaxSegments   int    // segments of one Mem
	MaxContexts   int    // contexts of one class
	Envelopes     int    // envelopes guaranteed to each peer (GER)
	Scheme        string // of the plugin
}

// Stats are the gauges and counters of one context.
type Stats struct {
	Peers       int   // sessions that are up
	BulkFlows   int   // of these, with a way for bulk data beside that for messages
	Outstanding int   // operations that peers owe an end
	Envelopes   int   // unexpected messages held for a receive or a dispatch
	Queued      int   // sends held back for want of an envelope or of room
	Leases      int   // leases that have not ended
	Streams     int   // streams of calls in both directions that have not ended
	Regions     int64 // registered memory of the class
	Withdrawn   int64 // messages that peers took back, or a closed context dropped, before anybody accepted them
	LateDropped int64 // messages and chunks that met no operation, dropped
	Violations  int64 // peers cut because they broke the protocol
	Panics      int64 // panics of the library itself over what peers had sent: please report what was logged
	PeersLost   int64 // sessions that were up and that nobody closed: the peer died, fell silent, broke the protocol, or gave this side up
	PeersLeft   int64 // sessions that the peer closed, in good order or not: it said so
	PeersIdle   int64 // sessions that ended because they were idle, as both sides agreed
	// PeersRetired counts sessions of which a certificate has expired, so that what began afterwards went in another one.
	PeersRetired int64
	Stalls       int64 // sends that had to wait for an envelope, or failed for want of one
	Reserved     int64 // bytes of envelopes and room guaranteed to peers now
	// HandshakesFailed counts TLS handshakes of peers that connected to the class and failed; the first context has it of tcp.
	HandshakesFailed int64
	// HighWater is the largest PeerStats.HighWater of all sessions, those that have ended included.
	HighWater int
}

// findPlugin returns the plugin of a scheme; those given come first.
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

// unknownScheme is the error of a scheme that is none of those that there are.
func unknownScheme(scheme string, have []string) error {
	if len(have) == 0 {
		return fmt.Errorf("na: unknown transport %q: no plugin is linked in; import plugins/all or one plugin: %w", scheme, ErrUnsupported)
	}
	slices.Sort(have)
	return fmt.Errorf("na: unknown transport %q: have %s: %w", scheme, strings.Join(have, ", "), ErrUnsupported)
}

// brokenContract is the error of a plugin that does not keep the contract of package carrier.
func brokenContract(scheme, what string) error {
	return WithText(ErrInvalid, fmt.Sprintf("na: plugin %s://: %s, which is a defect of the plugin", scheme, what))
}

// checkNetwork reports what a network lacks that no class can do without.
func checkNetwork(scheme string, n *carrier.Network) error {
	switch {
	case n.Names == nil:
		return brokenContract(scheme, "Network.Names is nil")
	case n.NewCarrier == nil:
		return brokenContract(scheme, "Network.NewCarrier is nil")
	}
	return nil
}
