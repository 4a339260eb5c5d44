package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// The RPCs of qs cp. Input and output are msgpack. Paths have slashes and are below the target's root.
//
//	upload:   open ─ seek until nothing is left to look at ─ piece: the target pulls ─ piece … ─ close
//	download: open ─ seek                                  ─ piece: the target pushes ─ piece … ─ close
const (
	rpcStat  = "qs/file/stat"  // pathRequest → entry
	rpcList  = "qs/file/list"  // listRequest → listReply
	rpcMkdir = "qs/file/mkdir" // mkdirRequest → nothing
	rpcOpen  = "qs/file/open"  // openRequest → openReply
	rpcSeek  = "qs/file/seek"  // seekRequest → seekReply
	rpcPiece = "qs/file/piece" // pieceRequest → pieceReply
	rpcClose = "qs/file/close" // closeRequest → closeReply
)

var fileRPCs = []string{rpcStat, rpcList, rpcMkdir, rpcOpen, rpcSeek, rpcPiece, rpcClose}

const (
	maxPiece = 64 << 20
	// listMax is how many entries one answer lists.
	listMax = 1000
	// seekStep bounds how much of a file one rpcSeek reads, so that its answer comes soon.
	seekStep = 256 << 20
)

// A stamp is what tells whether a file is still the same.
type stamp struct {
	Size    int64
	ModTime int64 // nanoseconds since 1970
	Mode    uint32
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{info.Size(), info.ModTime().UnixNano(), uint32(info.Mode().Perm())}
}

// sameData tells whether two stamps are of the same contents, as far as stamps can tell.
func (s stamp) sameData(o stamp) bool { return s.Size == o.Size && s.ModTime == o.ModTime }

func (s stamp) modTime() time.Time { return time.Unix(0, s.ModTime) }

// A kind is what an entry is. Only files and directories are copied.
type kind uint8

const (
	missing kind = iota
	regular
	directory
	special // a link, a device, ...
)

func kindOf(mode fs.FileMode) kind {
	switch {
	case mode.IsRegular():
		return regular
	case mode.IsDir():
		return directory
	}
	return special
}

// An entry is a name in a directory, or what a path leads to.
type entry struct {
	Name  string
	Kind  kind
	Stamp stamp
}

type pathRequest struct{ Path string }

type listRequest struct {
	Path  string
	After string // the last name of the answer before
}

type listReply struct{ Entries []entry }

type mkdirRequest struct {
	Path string
	Mode uint32
}

type openRequest struct {
	Path   string
	Write  bool // the origin sends; else it receives
	Stamp  stamp
	SHA256 bool
	Anew   bool // whatever is there already
}

type openReply struct {
	ID    uint64
	Stamp stamp
	Same  bool // the file is there already and has the same stamp: there is nothing to do, and no ID
	At    int64
	Note  string
}

// A seekRequest looks at what is there already. At and CRC tell a target that will push where to begin: one
// whose bytes before At have another checksum answers with na.ErrChecksum.
type seekRequest struct {
	ID  uint64
	At  int64
	CRC uint32
}

type seekReply struct {
	Left int64
	At   int64
	CRC  uint32
	Note string
}

// A pieceRequest asks for the next Size bytes of the file, at Offset, to be pulled from or pushed to Memory, where they begin
// at At. CRC is that of the file from its beginning to the end of the piece.
type pieceRequest struct {
	ID     uint64
	Offset int64
	Size   int64
	CRC    uint32
	Memory *bulk.Handle
	At     int64
}

type pieceReply struct{ CRC uint32 }

// A closeRequest ends a transfer: a part that is complete becomes the file; without Commit it stays a part.
type closeRequest struct {
	ID     uint64
	Commit bool
	Sync   bool
	CRC    uint32
	SHA256 []byte
}

type closeReply struct{ SHA256 []byte }

func encode(v any) ([]byte, error) { return codec.Msgpack.Append(nil, v) }

func decode(b []byte, v any) error {
	if err := codec.Msgpack.Decode(b, v); err != nil {
		return fmt.Errorf("%w: %w", err, na.ErrProtocol)
	}
	return nil
}

// respond answers h with out, or with err in the code that the client knows it by.
func respond(h hg.Incoming, out any, err error) {
	var b []byte
	if err == nil {
		b, err = encode(out)
	}
	if err == nil {
		_ = h.RespondRaw(b, nil)
		return
	}
	_ = h.RespondError(hg.Errorf(codeOf(err), "%w", err), nil)
}

func codeOf(err error) na.Code {
	switch code, ok := errors.AsType[na.Code](err); {
	case ok:
		return code
	case errors.Is(err, fs.ErrNotExist):
		return na.ErrNoEntry
	case errors.Is(err, fs.ErrPermission):
		return na.ErrPermission
	case errors.Is(err, fs.ErrExist):
		return na.ErrExists
	}
	return na.ErrIO
}
