package inspect

import (
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// RPCsRPC is the RPC that lists the RPCs of a class with hg.Config.Reflect. Its input is empty, and
// its output is decoded by DecodeRPCs.
const RPCsRPC = "hg/rpcs"

// An RPC describes one of the RPCs that RPCsRPC lists.
type RPC struct {
	Name   string
	Codec  string // name of the codec
	Shape  string // hg.RPC.Shape
	OneWay bool
}

// A listing is the decoded output of RPCsRPC.
type listing struct {
	RPCs  []RPC
	Codes map[uint8]string
}

// EncodeRPCs encodes the output of RPCsRPC: the RPCs that are served, in order of their names, and
// the names of the program's own codes.
func EncodeRPCs(all []RPC, codes map[uint8]string) ([]byte, error) {
	return codec.Msgpack.Append(nil, &listing{all, codes})
}

// DecodeRPCs decodes the output of RPCsRPC and returns the RPCs that the target serves, in order of
// their names. It does not retain output.
func DecodeRPCs(output []byte) ([]RPC, error) {
	var l listing
	err := codec.Msgpack.Decode(output, &l)
	return l.RPCs, err
}

// DecodeCodes decodes the output of RPCsRPC and returns the names of the target's own codes. The
// names come from the peer and are not validated.
func DecodeCodes(output []byte) (map[uint8]string, error) {
	var l listing
	err := codec.Msgpack.Decode(output, &l)
	return l.Codes, err
}

// IsBuiltIn reports whether the RPC with the given name belongs to this module rather than to the
// program. The name of such an RPC begins with "hg/" or "qs/". Tools that list RPCs for users may
// omit them.
func IsBuiltIn(name string) bool {
	return strings.HasPrefix(name, "hg/") || strings.HasPrefix(name, "qs/")
}
