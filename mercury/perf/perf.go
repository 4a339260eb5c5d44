package perf

import (
	"encoding/binary"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// How C's programs number their RPCs.
const (
	idRateInit = 1 + iota
	idRate
	idFirst
	idInit
	idRead
	idWrite
	idDone
)

// Who moves the data, seen from the server.
const (
	push = 0
	pull = 1
)

// An initIn describes the client's memory for one handle.
type initIn struct {
	Mem       mercury.Bulk
	Op        uint32
	Handle    uint32 // over all clients and servers
	Handles   uint32
	Count     uint32 // buffers in the memory
	Size      uint32 // of each
	Clients   uint32
	Rank      uint32 // of the server
	Servers   uint32
	Verifying bool
}

// A moveIn asks for a transfer of Size bytes of each buffer.
type moveIn struct {
	Mem    mercury.Bulk // or null: that of the handle
	Handle uint32
	Size   uint32
}

var (
	rateInit = mercury.DefineID[struct{}, struct{}]("rate_init", idRateInit)
	first    = mercury.DefineID[struct{}, struct{}]("first", idFirst)
	initMem  = mercury.DefineID[initIn, struct{}]("bw_init", idInit)
	bwRead   = mercury.DefineID[moveIn, struct{}]("bw_read", idRead)
	bwWrite  = mercury.DefineID[moveIn, struct{}]("bw_write", idWrite)
	done     = mercury.DefineID[struct{}, struct{}]("done", idDone)
)

// pattern fills the buffers in b, of size bytes each, with what both sides expect: the handle, and then numbers that count up.
func pattern(b []byte, size int, handle uint32) {
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

// verify checks the first n bytes of each buffer in b.
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
