// Package grpcqs runs gRPC services on Quicksilver: the generated code of protoc-gen-go-grpc,
// unchanged, on both sides.
//
//	generated client                          generated server
//	      │                                         ▲
//	      ▼                                         │
//	Client (grpc.ClientConnInterface)         Server (grpc.ServiceRegistrar)
//	      │  unary: one qs.Method                   ▲
//	      │  streams: one qs.Duplex                 │
//	      ▼                                         │
//	qs.Peer ════════ tcp, udp, sm or sim ════════ qs.Node
//	retries, health, TLS, fates               limits, draining
//
// A server and a client:
//
//	pb.RegisterGreeterServer(grpcqs.NewServer(node), &greeter{}) // before node.Serve
//	greeter := pb.NewGreeterClient(grpcqs.NewClient(peer))
//
// What always holds:
//
//   - A call ends with one status, which status.Code reads, and errors.As finds the error of
//     package qs in it: [FateOf] says whether the request ran.
//   - Messages of a stream arrive in order, each once, and before the status. A call that is
//     canceled, or out of time, ends at once.
//   - A CallOption that has no counterpart here is refused by its name, with Unimplemented, before
//     anything is sent.
//   - Sizes, lengths and names of a peer are checked before memory is used for them.
//
// The README has the tables: codes both ways, options, limits, and what is left out.
//
// Not here: the wire protocol of gRPC. Both sides run this package; a process that speaks gRPC over
// HTTP/2 is no peer.
package grpcqs
