// Package netroute chooses among the IP addresses of a host name those that this machine can reach.
//
//	name ─► resolver ─► addresses of both families ─► One ─► those of one family, which has a route
//
// It sends nothing: the system is asked for a route by connecting a datagram socket.
package netroute
