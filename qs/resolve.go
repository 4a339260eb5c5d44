package qs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/netroute"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// A Resolver finds the addresses of a service. It can be compared with ==: a pointer, for example. A Node runs one Watch for each
// service, on a goroutine of its own (in the simulator, in a coroutine), while a Peer of it is used.
type Resolver interface {
	// Watch calls update with all addresses of a service, which is a text that PeerWith was given, in order of preference, soon and at
	// each change, until ctx ends. It makes one call of update at a time. An error keeps the last addresses. A Watch that returns
	// before is called again after PeerOptions.ResolveInterval, and sooner when an address has failed, or there was an error: but not twice
	// within a second. Of more than 1,024 addresses the last are left out, which is logged.
	Watch(ctx context.Context, service string, update func(addrs []string, err error)) error
}

// dns is the Resolver that looks up hosts: "tcp://kv.example:9000" is every address of kv.example, with that port. If a host has
// addresses of both families it is the IPv4 ones, unless this machine has a route only to the IPv6 ones. A server that listens at [::1] alone is
// therefore called as tcp://[::1]:port, not as localhost. Each process has an order of its own for them.
type dns struct {
	resolver tcp.Resolver // nil is net.DefaultResolver
}

// hosted splits the text of an address with the name of a host; ok is false for any other.
func hosted(text string) (scheme, host, port string, ok bool) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "tcp" && scheme != "udp" {
		return "", "", "", false
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil || host == "" || strings.Contains(host, "@") {
		return "", "", "", false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", "", "", false
	}
	return scheme, host, port, true
}

// Watch implements Resolver. It asks once.
func (d dns) Watch(ctx context.Context, service string, update func(addrs []string, err error)) error {
	scheme, host, port, ok := hosted(service)
	if !ok {
		update([]string{service}, nil)
		return nil
	}
	if d.resolver == nil {
		d.resolver = net.DefaultResolver
	}
	ips, err := d.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		reason := err.Error()
		if e, ok := errors.AsType[*net.DNSError](err); ok {
			reason = e.Err
		}
		return na.WithText(hg.ErrNoEntry, fmt.Sprintf("host %s was not found: %s", host, reason))
	}
	ips = netroute.OneFamily(ips)
	slices.SortFunc(ips, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(maphash.Comparable(seed, a), maphash.Comparable(seed, b)), a.Compare(b))
	})
	var addrs []string
	for _, ip := range slices.Compact(ips) {
		addrs = append(addrs, scheme+"://"+host+"@"+net.JoinHostPort(ip.String(), port)) // whose certificate must carry host
	}
	update(addrs, nil)
	return nil
}
