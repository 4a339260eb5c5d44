package netroute

import (
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// zones holds the interfaces of this machine, by name and by index.
type zones struct {
	until   time.Time
	indexes map[string]uint32
	names   map[uint32]string
}

// zonesLast is how long the list of interfaces is cached, so that sending datagrams need not wait
// for it. A lookup of an unknown interface refreshes the cache immediately, but at most once per
// zonesRetry.
const zonesLast, zonesRetry = time.Second, 100 * time.Millisecond

var known atomic.Pointer[zones]

// interfaces returns the cached interfaces. It refreshes them first if they are out of date or if
// has reports false for them.
func interfaces(has func(z *zones) bool) *zones {
	z, now := known.Load(), time.Now()
	if z != nil && now.Before(z.until) && (has(z) || now.Before(z.until.Add(zonesRetry-zonesLast))) {
		return z
	}
	z = &zones{until: now.Add(zonesLast), indexes: map[string]uint32{}, names: map[uint32]string{}}
	all, _ := net.Interfaces()
	for _, ifc := range all {
		z.indexes[ifc.Name], z.names[uint32(ifc.Index)] = uint32(ifc.Index), ifc.Name
	}
	known.Store(z)
	return z
}

// ZoneIndex returns the index of the interface that an IPv6 zone identifies by name or number, or 0
// if there is none. It may query the system for the list of interfaces, and does not block
// otherwise.
func ZoneIndex(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if i := interfaces(func(z *zones) bool { return z.indexes[zone] != 0 }).indexes[zone]; i != 0 {
		return i
	}
	i, _ := strconv.ParseUint(zone, 10, 32)
	return uint32(i)
}

// WithZone returns ip with the zone set to the interface with the given index, by name if it has
// one. It returns addresses that are not link-local unchanged.
func WithZone(ip netip.Addr, index uint32) netip.Addr {
	if index == 0 || !ip.Is6() || ip.Is4In6() || !ip.IsLinkLocalUnicast() && !ip.IsLinkLocalMulticast() {
		return ip
	}
	if name := interfaces(func(z *zones) bool { return z.names[index] != "" }).names[index]; name != "" {
		return ip.WithZone(name)
	}
	return ip.WithZone(strconv.Itoa(int(index)))
}

// NameZone returns ap with its zone in the form used by WithZone, so that each address has a single
// text form.
func NameZone(ap netip.AddrPort) netip.AddrPort {
	ip := ap.Addr()
	if ip.Zone() == "" {
		return ap
	}
	return netip.AddrPortFrom(WithZone(ip.WithZone(""), ZoneIndex(ip.Zone())), ap.Port())
}
