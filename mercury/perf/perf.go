package perf

import (
	"encoding/binary"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// IDs of the RPCs used by the programs.
const (
	idRateInit = 1 + iota
	idRate
	idFirst
	idInit
	idRead
	idWrite
	idDone
)

// Directions of transfers, from the point of view of the server.
const (
	push = 0
	pull = 1
)

// An initIn is the input of bw_init. It describes the client's memory for one handle.
type initIn struct {
	Mem       mercury.Bulk
	Op        uint32 // push or pull
	Handle    uint32 // index over all clients and servers
	Handles   uint32
	Count     uint32 // number of buffers in the memory
	Size      uint32 // size of each buffer in bytes
	Clients   uint32
	Rank      uint32 // index of the server
	Servers   uint32
	Verifying bool
}

// A transferIn is the input of bw_read and bw_write, which transfer Size bytes of each buffer.
type transferIn struct {
	Mem    mercury.Bulk // HG_BULK_NULL means the memory passed to bw_init
	Handle uint32
	Size   uint32
}

var (
	rateInit = mercury.DefineID[struct{}, struct{}]("rate_init", idRateInit)
	first    = mercury.DefineID[struct{}, struct{}]("first", idFirst)
	initMem  = mercury.DefineID[initIn, struct{}]("bw_init", idInit)
	bwRead   = mercury.DefineID[transferIn, struct{}]("bw_read", idRead)
	bwWrite  = mercury.DefineID[transferIn, struct{}]("bw_write", idWrite)
	done     = mercury.DefineID[struct{}, struct{}]("done", idDone)
)

// fillPattern fills the buffers in b, each of size bytes, with the pattern that both sides verify: the handle, followed
// by ascending numbers.
func fillPattern(b []byte, size int, handle uint32) {
	for at := 0; at < len(b); at += size {
		buf := b[at:min(at+size, len(b))]
		for i := 0; i+4 <= len(buf); i += 4 {
			binary.LittleEndian.PutUint32(buf[i:], uint32(i/4))
		}
		if len(buf) >= 4 {
			binary.LittleEndian.PutUint32(buf, handle)
		}
	}
}

// verify returns an error if the first n bytes of each buffer in b do not contain the pattern.
func verify(b []byte, size, n int, handle uint32) error {
	for at := 0; at < len(b); at += size {
		for i := 0; i+4 <= n; i += 4 {
			want := uint32(i / 4)
			if i == 0 {
				want = handle
			}
			if got := binary.LittleEndian.Uint32(b[at+i:]); got != want {
				return fmt.Errorf("perf: byte %d of a buffer: got the number %d, want %d", i, got, want)
			}
		}
	}
	return nil
}
