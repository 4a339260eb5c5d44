// Package netns holds tests over a real network that misbehaves: two namespaces with a veth pair
// between them, and rules of nftables that lose, repeat, damage, hold back and refuse packets.
//
//	┌ namespace a ───────────┐  veth   ┌ namespace b ───────────┐
//	│ calls, serves (9000) ──┼─────────┼── calls, serves (9000) │  faults are about port 9000
//	│        └───────────────┼─────────┼── bystander     (9100) │  and must not be felt on 9100
//	└────────────────────────┘         └────────────────────────┘
//
// In paths_test.go there are two routers between a and b, whose link becomes narrower or drops a
// family.
//
// It needs root, ip of iproute2 and nft of nftables, so it is no part of a plain run: nothing runs
// unless QUICKSILVER_NETNS=1 is set, and then what is missing is a failure.
//
//	QUICKSILVER_NETNS=1 go test ./internal/test/proctest/netns -v
//	QUICKSILVER_NETNS=1 go test ./internal/test/proctest/netns -v -run 'TestLoss/tcp/5%$' -netns.for=10m -timeout 15m
package netns
