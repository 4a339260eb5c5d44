package hgwire

import "encoding/binary"

// ID is the identity of the RPC that C registers under name: djb2 over the bytes, in 32 bits.
func ID(name string) uint64 {
	h := uint32(5381)
	for _, c := range []byte(name) {
		h = h*33 + uint32(c)
	}
	return uint64(h)
}

// DefaultProvider is Margo's provider for RPCs that belong to none.
const DefaultProvider = 65535

// MargoID is the identity that Margo registers: Bob Jenkins' hash of 1997 over the name above 32 bits, and the provider below.
func MargoID(name string, provider uint16) uint64 {
	return uint64(jenkins([]byte(name)))<<32 | uint64(provider)
}

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
	var last [12]byte // its lowest byte of c is the length's
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
