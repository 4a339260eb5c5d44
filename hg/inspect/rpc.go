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

// A listing is the output of RPCsRPC.
type listing struct {
	RPCs  []RPC
	Codes map[uint8]string
}

// EncodeRPCs encodes the output of RPCsRPC: the RPCs that are served, by name, and what the program calls codes of its own.
func EncodeRPCs(all []RPC, codes map[uint8]string) ([]byte, error) {
	return codec.Msgpack.Append(nil, &listing{all, codes})
}

// DecodeRPCs decodes the output of RPCsRPC: the RPCs that the target serves, by name. output is not kept.
func DecodeRPCs(output []byte) ([]RPC, error) {
	var l listing
	err := codec.Msgpack.Decode(output, &l)
	return l.RPCs, err
}

// DecodeCodes decodes what the output of RPCsRPC says of codes: the names that the target has given its own. They are what a peer says: nothing
// about them has been checked.
func DecodeCodes(output []byte) (map[uint8]string, error) {
	var l listing
	err := codec.Msgpack.Decode(output, &l)
	return l.Codes, err
}

// IsBuiltIn reports whether an RPC of that name is one of this module, and not one of the program: its name begins with "hg/" or
// "qs/". What lists RPCs for people may leave them out.
func IsBuiltIn(name string) bool {
	return strings.HasPrefix(name, "hg/") || strings.HasPrefix(name, "qs/")
}
