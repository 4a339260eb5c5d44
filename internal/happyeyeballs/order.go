package happyeyeballs

import "net/netip"

// Order returns the addresses in the order in which to dial them, without duplicates. The families
// alternate, starting with that of the first address, and the order within a family is preserved
// (RFC 8305, section 4). IPv4-mapped IPv6 addresses are returned as IPv4. Resolvers return the
// preferred address first (RFC 6724).
func Order(ips []netip.Addr) []netip.Addr {
	first, second := splitFamilies(ips)
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

// Groups divides the addresses of one host among its servers. Each address of the first address's
// family counts as a separate server and starts a group. The addresses of the other family are
// distributed among the groups, as alternatives for networks on which the first family is
// unreachable.
func Groups(ips []netip.Addr) [][]netip.Addr {
	first, second := splitFamilies(ips)
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

// splitFamilies divides the addresses by family and removes duplicates. first holds those of the
// first address's family.
func splitFamilies(ips []netip.Addr) (first, second []netip.Addr) {
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
