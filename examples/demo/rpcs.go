package main

import "github.com/quicksilver-rpc/quicksilver/bulk"

// The RPCs. Those below are served by the target, the last two by the origin: each process is both.
const (
	rpcSquare = "demo/square" // int64 → int64
	rpcPull   = "demo/pull"   // pullInput → pullOutput: the target pulls memory of the origin
	rpcHold   = "demo/hold"   // bool → string: false is kept and not answered, true answers all that are kept

	rpcMoved   = "demo/moved"   // one-way, int64: how many bytes of a pull have arrived
	rpcHolding = "demo/holding" // one-way: a request is kept
)

// pullInput asks for a pull of Data.
type pullInput struct {
	Data *bulk.Handle
	// StopAt makes the target cancel its pull when that many bytes have arrived; 0 lets it end.
	StopAt int64
}

// pullOutput is how the pull ended.
type pullOutput struct {
	Moved    int64
	Canceled bool
	Sum      []byte // SHA-256 of the data, if all of it arrived
}
