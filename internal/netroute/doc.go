// Package netroute finds the zones of IPv6 addresses: the interfaces by which addresses are reached
// that mean something on one link only.
package netroute
