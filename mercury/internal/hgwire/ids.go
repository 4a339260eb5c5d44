package hgwire

import "encoding/binary"

// ID returns the ID of the RPC that C registers under name, which is the 32-bit djb2 hash of its bytes.
func ID(name string) uint64 {
	h := uint32(5381)
	for _, c := range []byte(name) {
		h = h*33 + uint32(c)
	}
	return uint64(h)
}

// DefaultProvider is Margo's provider ID for RPCs without a provider.
const DefaultProvider = 65535

// MargoID returns the ID that Margo registers. The upper 32 bits are Bob Jenkins's 1997 hash of the name, and the lower
// ones are the provider ID.
func MargoID(name string, provider uint16) uint64 {
	return uint64(jenkins([]byte(name)))<<32 | uint64(provider)
}

// jenkins returns Bob Jenkins's 1997 hash of key, with the initial value used by Margo.
func jenkins(key []byte) uint32 {
	const golden = 0x9e3779b9
	a, b, c := uint32(golden), uint32(golden), uint32(0xfeedbeef)
	n := uint32(len(key))
	for ; len(key) >= 12; key = key[12:] {
		a += binary.LittleEndian.Uint32(key)
		b += binary.LittleEndian.Uint32(key[4:])
		c += binary.LittleEndian.Uint32(key[8:])
		a, b, c = mix(a, b, c)
	}
	var last [12]byte // the lowest byte of c is reserved for the length
	copy(last[:8], key)
	if len(key) > 8 {
		copy(last[9:], key[8:])
	}
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:]) + n
	_, _, c = mix(a, b, c)
	return c
}

// mix is the mixing function of jenkins.
func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a = (a - b - c) ^ c>>13
	b = (b - c - a) ^ a<<8
	c = (c - a - b) ^ b>>13
	a = (a - b - c) ^ c>>12
	b = (b - c - a) ^ a<<16
	c = (c - a - b) ^ b>>5
	a = (a - b - c) ^ c>>3
	b = (b - c - a) ^ a<<10
	c = (c - a - b) ^ b>>15
	return a, b, c
}
