package main

import "github.com/quicksilver-rpc/quicksilver/bulk"

// RPCs. The target serves the first three, and the origin serves the last two: each process is both
// a target and an origin.
const (
	rpcSquare = "demo/square" // int64 → int64
	rpcPull   = "demo/pull"   // pullInput → pullOutput: the target pulls the origin's memory
	rpcHold   = "demo/hold"   // bool → string: a request with false is held; one with true is answered together with all held requests

	rpcMoved   = "demo/moved"   // one-way, int64: number of bytes of a pull that have arrived
	rpcHolding = "demo/holding" // one-way: a request is held
)

// pullInput requests a pull of Data.
type pullInput struct {
	Data *bulk.Handle
	// StopAt makes the target cancel its pull when that many bytes have arrived. With 0 the pull
	// completes.
	StopAt int64
}

// pullOutput is the result of a pull.
type pullOutput struct {
	Moved    int64
	Canceled bool
	Sum      []byte // SHA-256 of the data, if all of it arrived
}
