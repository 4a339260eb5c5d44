// Package netroute knows the zones of IPv6 addresses: the interfaces by which addresses are reached
// that mean something on one link only.
package netroute
