// Package netroute resolves the zones of IPv6 addresses: the interfaces through which addresses
// that are valid on only one link are reached.
package netroute
