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
//	upload:   open ─ seek until all is verified ─ piece: the target pulls ─ piece … ─ close
//	download: open ─ seek                       ─ piece: the target pushes ─ piece … ─ close
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

// rpcPiece takes a pieceRequest and returns a pieceReply. It is an RPC rather than a method, because several pieces are
// in flight at a time and must arrive in the order in which they were requested.
const rpcPiece = "qs/file/piece"

const (
	// MaxPiece limits the size of a piece, in bytes, and MaxWindow the number of pieces that an origin may have
	// requested from a transfer at a time.
	MaxPiece  = 64 << 20
	MaxWindow = 16
	// listMax is the maximum number of entries in an answer.
	listMax = 1000
	// seekStep limits how many bytes of a file one rpcSeek reads, so that its answer is not delayed for long.
	seekStep = 256 << 20
)

// A stamp holds the properties used to detect a changed file.
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

// isSameData reports whether size and modification time indicate that two stamps describe the same contents.
func (s stamp) isSameData(o stamp) bool { return s.Size == o.Size && s.ModTime == o.ModTime }

func (s stamp) modTime() time.Time { return time.Unix(0, s.ModTime) }

// partOptions configures how a file is received.
type partOptions struct {
	SHA256 bool
	Anew   bool  // ignore what already exists
	Holes  int64 // bytes that are not stored on the source's disk; if not 0, zeros are not written
	Stream bool  // the size is unknown; the sender reports the end
}

// A kind is the type of an entry. Only files and directories are copied.
type kind uint8

const (
	missing kind = iota
	regular
	directory
	special // a device, pipe or the like
	link    // a symbolic link
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

// An entry describes a name in a directory, or the file at a path.
type entry struct {
	Name  string
	Kind  kind
	Stamp stamp
	Holes int64 // bytes that are not stored on disk; the file is sparse if this is not 0
}

type pathRequest struct{ Path string }

type listRequest struct {
	Path  string
	After string // last name of the previous answer
}

type listReply struct{ Entries []entry }

type mkdirRequest struct {
	Path string
	Mode uint32
}

type openRequest struct {
	Path  string
	Write bool // the origin sends; otherwise it receives
	Stamp stamp
	How   partOptions
}

type openReply struct {
	ID    uint64
	Stamp stamp
	Same  bool // the file already exists with the same stamp: there is nothing to do, and ID is not set
	At    int64
	Note  string
}

// A seekRequest verifies existing data. At and CRC specify where a target that will push should begin. If the bytes
// before At have a different checksum, the target answers with na.ErrChecksum.
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

// A pieceRequest requests that the next Size bytes of the file, starting at Offset, be pulled from or pushed to Memory,
// starting at At. CRC is the checksum of the file from its beginning to the end of the piece.
type pieceRequest struct {
	ID     uint64
	Offset int64
	Size   int64
	CRC    uint32
	Memory *bulk.Handle
	At     int64
}

type pieceReply struct{ CRC uint32 }

// A closeRequest ends a transfer. With Commit, a complete part becomes the file; otherwise it remains a part.
type closeRequest struct {
	ID     uint64
	Commit bool
	Sync   bool
	CRC    uint32
	SHA256 []byte
}

type closeReply struct{ SHA256 []byte }

// withCode adds to a target's error the code by which the origin recognizes it.
func withCode(err error) error {
	if err == nil {
		return nil
	}
	return hg.Errorf(codeOf(err), "%w", err)
}

// ErrNoSource is the error for a source that does not exist.
var ErrNoSource = fmt.Errorf("%w", fs.ErrNotExist)

// Refused reports whether the target permanently rejects the copy, because it does not have the path or the method, or
// does not permit the operation.
func Refused(err error) bool {
	if _, ok := hg.RemoteOf(err); !ok {
		return errors.Is(err, ErrNoSource)
	}
	code := codeOf(err)
	return code == na.ErrPermission || code == na.ErrNoEntry || code == na.ErrNoMethod
}

// Interrupted reports whether err is an interrupt or concerns the network or the target's state rather than the files,
// which means that the copy can be resumed.
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
