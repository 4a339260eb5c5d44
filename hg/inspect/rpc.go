package inspect

import (
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// RPCsRPC is the RPC that lists those of a class with hg.Config.Reflect. Its input is empty, its output what DecodeRPCs decodes.
const RPCsRPC = "hg/rpcs"

// An RPC is what RPCsRPC says of an RPC.
type RPC struct {
	Name   string
	Codec  string // its name
	Shape  string // hg.RPC.Shape
	OneWay bool
}

// DecodeRPCs decodes the output of RPCsRPC: the RPCs that the target serves, by name. output is not kept.
func DecodeRPCs(output []byte) (all []RPC, err error) {
	err = codec.Msgpack.Decode(output, &all)
	return all, err
}

// IsBuiltIn reports whether an RPC of that name is one of this module, and not one of the program: its name begins with "hg/" or
// "qs/". What lists RPCs for people may leave them out.
func IsBuiltIn(name string) bool {
	return strings.HasPrefix(name, "hg/") || strings.HasPrefix(name, "qs/")
}
