package yokan

import (
	"encoding/binary"
	"math"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// A requestHead is the beginning of every request: the modes as int32_t and, from release 0.10, the timeout as double.
type requestHead struct {
	mode      Mode
	timeout   float64 // in milliseconds; 0 for none
	isOldWire bool    // release 0.9 or earlier, which has no timeout
}

// AppendProc appends f in Yokan's encoding and returns the extended slice.
func (f requestHead) AppendProc(to []byte) ([]byte, error) {
	to = binary.LittleEndian.AppendUint32(to, uint32(f.mode))
	if !f.isOldWire {
		to = binary.LittleEndian.AppendUint64(to, math.Float64bits(f.timeout))
	}
	return to, nil
}

// ReadProc decodes a request head of release 0.10.
func (f *requestHead) ReadProc(data []byte) (int, error) {
	if len(data) < 12 {
		return 0, ErrAnswer
	}
	*f = requestHead{mode: Mode(binary.LittleEndian.Uint32(data)), timeout: math.Float64frombits(binary.LittleEndian.Uint64(data[4:]))}
	return 12, nil
}

// Inputs and outputs of the RPCs. A raw_data in C is a []byte here, and a uint64_list is a []uint64. An origin address
// of NULL means that the memory is the caller's.
type (
	bulkIn struct { // for exists, length, put and erase
		Front               requestHead
		Count, Offset, Size uint64
		Origin              *string
		Mem                 mercury.Bulk
	}
	getIn struct {
		Front               requestHead
		Count, Offset, Size uint64
		Origin              *string
		Packed              bool
		Mem                 mercury.Bulk
	}
	listKeysIn struct {
		Front                               requestHead
		Packed                              bool
		Count, FromSize, FilterSize, Offset uint64
		KeysSize                            uint64
		Origin                              *string
		Mem                                 mercury.Bulk
	}
	listPairsIn struct {
		Front                               requestHead
		Packed                              bool
		Count, FromSize, FilterSize, Offset uint64
		KeysSize, ValuesSize                uint64
		Origin                              *string
		Mem                                 mercury.Bulk
	}

	keysDirectIn struct { // for exists and length
		Front requestHead
		Keys  []byte   `proc:"u64"`
		Sizes []uint64 `proc:"u64"`
	}
	eraseDirectIn struct {
		Front requestHead
		Sizes []uint64 `proc:"u64"`
		Keys  []byte   `proc:"u64"`
	}
	prefixIn struct {
		Front  requestHead
		Prefix []byte `proc:"u64"`
	}
	putDirectIn struct {
		Front        requestHead
		KeySizes     []uint64 `proc:"u64"`
		ValueSizes   []uint64 `proc:"u64"`
		Keys, Values []byte   `proc:"u64"`
	}
	getDirectIn struct {
		Front      requestHead
		ValuesSize uint64
		KeySizes   []uint64 `proc:"u64"`
		Keys       []byte   `proc:"u64"`
	}
	listKeysDirectIn struct {
		Front    requestHead
		Count    uint64
		From     []byte `proc:"u64"`
		Filter   []byte `proc:"u64"`
		KeysSize uint64
	}
	listPairsDirectIn struct {
		Front      requestHead
		Count      uint64
		From       []byte `proc:"u64"`
		Filter     []byte `proc:"u64"`
		KeysSize   uint64
		ValuesSize uint64
	}

	countOut struct {
		Code  Code
		Count uint64
	}
	existsDirectOut struct {
		Flags []byte `proc:"u64"`
		Code  Code
	}
	lengthDirectOut struct {
		Sizes []uint64 `proc:"u64"`
		Code  Code
	}
	getDirectOut struct {
		Sizes  []uint64 `proc:"u64"`
		Values []byte   `proc:"u64"`
		Code   Code
	}
	listKeysDirectOut struct {
		Code  Code
		Sizes []uint64 `proc:"u64"`
		Keys  []byte   `proc:"u64"`
	}
	listPairsDirectOut struct {
		Code       Code
		KeySizes   []uint64 `proc:"u64"`
		ValueSizes []uint64 `proc:"u64"`
		Keys       []byte   `proc:"u64"`
		Values     []byte   `proc:"u64"`
	}
)

// RPCs of the service.
var (
	countRPC           = mercury.DefineMargo[requestHead, countOut]("yk_count")
	existsRPC          = mercury.DefineMargo[bulkIn, Code]("yk_exists")
	existsDirectRPC    = mercury.DefineMargo[keysDirectIn, existsDirectOut]("yk_exists_direct")
	lengthRPC          = mercury.DefineMargo[bulkIn, Code]("yk_length")
	lengthDirectRPC    = mercury.DefineMargo[keysDirectIn, lengthDirectOut]("yk_length_direct")
	putRPC             = mercury.DefineMargo[bulkIn, Code]("yk_put")
	putDirectRPC       = mercury.DefineMargo[putDirectIn, Code]("yk_put_direct")
	getRPC             = mercury.DefineMargo[getIn, Code]("yk_get")
	getDirectRPC       = mercury.DefineMargo[getDirectIn, getDirectOut]("yk_get_direct")
	eraseRPC           = mercury.DefineMargo[bulkIn, Code]("yk_erase")
	eraseDirectRPC     = mercury.DefineMargo[eraseDirectIn, Code]("yk_erase_direct")
	eraseRangeRPC      = mercury.DefineMargo[prefixIn, Code]("yk_erase_range")
	listKeysRPC        = mercury.DefineMargo[listKeysIn, Code]("yk_list_keys")
	listKeysDirectRPC  = mercury.DefineMargo[listKeysDirectIn, listKeysDirectOut]("yk_list_keys_direct")
	listPairsRPC       = mercury.DefineMargo[listPairsIn, Code]("yk_list_keyvals")
	listPairsDirectRPC = mercury.DefineMargo[listPairsDirectIn, listPairsDirectOut]("yk_list_keyvals_direct")
)

// Values of a size that are not lengths.
const (
	sizeNotFound = math.MaxUint64     // the key does not exist
	sizeTooSmall = math.MaxUint64 - 1 // the buffer is too small
	sizeNoMore   = math.MaxUint64 - 2 // there are no more keys
)

func appendSizes(to []byte, sizes []uint64) []byte {
	for _, n := range sizes {
		to = binary.LittleEndian.AppendUint64(to, n)
	}
	return to
}

func readSizes(b []byte) []uint64 {
	sizes := make([]uint64, len(b)/8)
	for i := range sizes {
		sizes[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return sizes
}
