// Package etcd has no code: its test runs the services and the clients of etcd, unchanged, over Quicksilver, by contrib/grpc. It is a module of
// its own for what etcd needs.
package etcd
