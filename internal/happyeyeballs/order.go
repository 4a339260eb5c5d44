package happyeyeballs

import "net/netip"

// Order returns addresses in the order in which they are dialed, without those that occur twice: the families take turns, beginning with that
// of the first address, and within a family the order stays (RFC 8305, section 4). IPv4 addresses that are mapped to IPv6 are returned as IPv4.
// A resolver returns the preferred address first (RFC 6724).
func Order(ips []netip.Addr) []netip.Addr {
	first, second := families(ips)
	all := make([]netip.Addr, 0, len(first)+len(second))
	for i := range max(len(first), len(second)) {
		if i < len(first) {
			all = append(all, first[i])
		}
		if i < len(second) {
			all = append(all, second[i])
		}
	}
	return all
}

// Groups returns the addresses of one host as those of its servers, where each of the first family is taken for another server: it is the first
// of a group, and the addresses of the other family, which are shared out, follow it in case that its family cannot be reached.
func Groups(ips []netip.Addr) [][]netip.Addr {
	first, second := families(ips)
	groups := make([][]netip.Addr, len(first))
	for i, ip := range first {
		groups[i] = []netip.Addr{ip}
	}
	for j := range max(len(first), len(second)) {
		if len(second) > 0 {
			i := j % len(first)
			groups[i] = append(groups[i], second[j%len(second)])
		}
	}
	return groups
}

// families divides addresses by their family, that of the first address first.
func families(ips []netip.Addr) (first, second []netip.Addr) {
	seen := make(map[netip.Addr]bool, len(ips))
	for _, ip := range ips {
		ip = ip.Unmap()
		if seen[ip] {
			continue
		}
		seen[ip] = true
		if len(first) == 0 || first[0].Is4() == ip.Is4() {
			first = append(first, ip)
		} else {
			second = append(second, ip)
		}
	}
	return first, second
}
