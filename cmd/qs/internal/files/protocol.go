package files

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// The methods of qs cp. Paths are separated by slashes and relative to the target's root.
//
// Each copy of a file is a transfer. The origin calls open and then seek, repeatedly until the existing data has been
// verified. It then sends rpcPiece requests. For each of them the target pulls a piece of an upload from the origin's
// memory, or pushes a piece of a download to that memory. The origin finally calls close.
var (
	methodStat  = define[pathRequest, entry]("stat")
	methodList  = define[listRequest, listReply]("list")
	methodMkdir = define[mkdirRequest, struct{}]("mkdir")
	methodOpen  = define[openRequest, openReply]("open")
	methodSeek  = define[seekRequest, seekReply]("seek")
	methodClose = define[closeRequest, closeReply]("close")
)

func define[In, Out any](name string) *qs.Method[In, Out] {
	return qs.Define[In, Out]("qs/file/"+name, qs.WithCodec(codec.Msgpack))
}

// rpcPiece transfers a piece. Its input is a pieceRequest and its output a pieceReply. It is an RPC rather than a
// method of package qs, because several pieces are in flight at a time and must be processed in the order in which they
// were requested.
const rpcPiece = "qs/file/piece"

const (
	// MaxPiece is the maximum size of a piece, in bytes. MaxWindow is the maximum number of outstanding requests for
	// pieces in a transfer.
	MaxPiece  = 64 << 20
	MaxWindow = 16
	// listMax is the maximum number of entries in the reply to a list request.
	listMax = 1000
	// seekStep is the maximum number of bytes that one seek request verifies, so that its reply is not delayed for
	// long.
	seekStep = 256 << 20
)

// A stamp holds the properties of a file that are used to detect changes.
type stamp struct {
	Size    int64
	ModTime int64 // nanoseconds since 1970; times outside 1678 to 2262 are clamped to that range
	Mode    uint32
}

func stampOf(info fs.FileInfo) stamp {
	return stamp{info.Size(), nanosOf(info.ModTime()), uint32(info.Mode().Perm())}
}

func nanosOf(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// isSameData reports whether s and o have the same size and modification time, and therefore presumably describe the
// same data.
func (s stamp) isSameData(o stamp) bool { return s.Size == o.Size && s.ModTime == o.ModTime }

func (s stamp) modTime() time.Time { return time.Unix(0, s.ModTime) }

// partOptions configures the part to which a file is received.
type partOptions struct {
	SHA256 bool
	Anew   bool  // ignore data that already exists
	Holes  int64 // bytes that are not stored on the source's disk; if not 0, zeros are not written
	Stream bool  // the size is unknown until the sender commits
}

// A kind is the type of an entry. Only files and directories are copied.
type kind uint8

const (
	missing kind = iota
	regular
	directory
	special // device, pipe, socket or similar
	link    // symbolic link
)

func kindOf(mode fs.FileMode) kind {
	switch {
	case mode.IsRegular():
		return regular
	case mode.IsDir():
		return directory
	case mode&fs.ModeSymlink != 0:
		return link
	}
	return special
}

// An entry describes a file, a directory or another object, either in a directory listing or at a requested path.
type entry struct {
	Name  string
	Kind  kind
	Stamp stamp
	Holes int64 // number of bytes that are not stored on disk; not 0 if the file is sparse
}

type pathRequest struct{ Path string }

type listRequest struct {
	Path  string
	After string // last name in the previous reply; "" in the first request
}

type listReply struct{ Entries []entry }

type mkdirRequest struct {
	Path string
	Mode uint32
}

type openRequest struct {
	Path  string
	Write bool // the origin sends the file; otherwise it receives the file
	Stamp stamp
	How   partOptions
}

type openReply struct {
	ID    uint64
	Stamp stamp
	Same  bool // the file already exists with the same stamp; no transfer was started, and ID is not set
	At    int64
	Note  string
}

// A seekRequest verifies the next step of existing data. For a download, At is the offset at which the target is to
// start sending, and CRC is the checksum of the data before At. If the target's data before At has a different
// checksum, the call fails with na.ErrChecksum.
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

// A pieceRequest requests the transfer of Size bytes of the file, starting at Offset. The target pulls the bytes from
// Memory, or pushes them to Memory, at offset At. For an upload, CRC is the checksum of the file up to the end of the
// piece.
type pieceRequest struct {
	ID     uint64
	Offset int64
	Size   int64
	CRC    uint32
	Memory *bulk.Handle
	At     int64
}

type pieceReply struct{ CRC uint32 }

// A closeRequest ends a transfer. If Commit is set, a complete part is renamed to the file; otherwise it remains a
// part.
type closeRequest struct {
	ID     uint64
	Commit bool
	Sync   bool
	CRC    uint32
	SHA256 []byte
}

type closeReply struct{ SHA256 []byte }

// withCode adds to err a code that the origin can recognize.
func withCode(err error) error {
	if err == nil {
		return nil
	}
	return hg.Errorf(codeOf(err), "%w", err)
}

// ErrNoSource is returned when the source of a copy does not exist.
var ErrNoSource = fmt.Errorf("%w", fs.ErrNotExist)

// Refused reports whether err means that the target permanently rejects the copy. It does so if the path or the method
// does not exist at the target, or if the operation is not permitted.
func Refused(err error) bool {
	if _, ok := hg.RemoteOf(err); !ok {
		return errors.Is(err, ErrNoSource)
	}
	code := codeOf(err)
	return code == na.ErrPermission || code == na.ErrNoEntry || code == na.ErrNoMethod
}

// Interrupted reports whether a copy that failed with err can be resumed. It can if it was interrupted, or if err
// concerns the network or the target's state rather than the files.
func Interrupted(err error) bool {
	switch codeOf(err) {
	case na.ErrPeerLost, na.ErrUnreachable, na.ErrTimeout, na.ErrCanceled, na.ErrClosed, na.ErrAgain, hg.ErrDraining:
		return true
	}
	return false
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
