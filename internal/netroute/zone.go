package netroute

import (
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"
)

// zones is the interfaces of this machine by name and by index.
type zones struct {
	until   time.Time
	indexes map[string]uint32
	names   map[uint32]string
}

// zonesLast is how long the interfaces are not asked for again, so that datagrams need not wait for
// that. One that is not known is asked for at once, but no more than ten times a second.
const zonesLast, zonesRetry = time.Second, 100 * time.Millisecond

var known atomic.Pointer[zones]

// interfaces returns what is known, asked for anew if that is old, or has is false for it.
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

// ZoneIndex returns the index of the interface that an IPv6 zone names, by name or number; 0: there
// is none. It may ask the system for the interfaces, and does not block otherwise.
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

// WithZone returns ip with the zone of an interface, by name if it has one. An address that means
// the same on every interface is returned as it is.
func WithZone(ip netip.Addr, index uint32) netip.Addr {
	if index == 0 || !ip.Is6() || ip.Is4In6() || !ip.IsLinkLocalUnicast() && !ip.IsLinkLocalMulticast() {
		return ip
	}
	if name := interfaces(func(z *zones) bool { return z.names[index] != "" }).names[index]; name != "" {
		return ip.WithZone(name)
	}
	return ip.WithZone(strconv.Itoa(int(index)))
}

// NameZone returns ap with its zone as WithZone has it, so that one address is written in one way.
func NameZone(ap netip.AddrPort) netip.AddrPort {
	ip := ap.Addr()
	if ip.Zone() == "" {
		return ap
	}
	return netip.AddrPortFrom(WithZone(ip.WithZone(""), ZoneIndex(ip.Zone())), ap.Port())
}
