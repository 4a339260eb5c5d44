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

// The methods of qs cp. Paths have slashes and are below the target's root.
//
//	upload:   open ─ seek until nothing is left to look at ─ piece: the target pulls ─ piece … ─ close
//	download: open ─ seek                                  ─ piece: the target pushes ─ piece … ─ close
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

// rpcPiece takes a pieceRequest and gives a pieceReply. It is an RPC and not a method: several pieces are under way at a time, and
// arrive in the order in which they were asked for.
const rpcPiece = "qs/file/piece"

const (
	// MaxPiece bounds a piece, in bytes, and MaxWindow the pieces that an origin may have asked a transfer for at a time.
	MaxPiece  = 64 << 20
	MaxWindow = 16
	// listMax is how many entries one answer lists.
	listMax = 1000
	// seekStep bounds how much of a file one rpcSeek reads, so that its answer comes soon.
	seekStep = 256 << 20
)

// A stamp holds the properties by which a changed file is detected.
type stamp struct {
	Size    int64
	ModTime int64 // nanoseconds since 1970, from 1678 to 2262: for times outside the nearest of these
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

// isSameData reports whether two stamps are of the same contents, by size and modification time.
func (s stamp) isSameData(o stamp) bool { return s.Size == o.Size && s.ModTime == o.ModTime }

func (s stamp) modTime() time.Time { return time.Unix(0, s.ModTime) }

// partOptions configures how a file is received.
type partOptions struct {
	SHA256 bool
	Anew   bool  // whatever is there already
	Holes  int64 // bytes of the source that its disk does not keep: what is zero is not written
	Stream bool  // its size is not known: it is complete when the sender says so
}

// A kind is the kind of an entry. Only files and directories are copied.
type kind uint8

const (
	missing kind = iota
	regular
	directory
	special // a device, a pipe, ...
	link    // a symbolic one
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

// An entry is a name in a directory, or the file at a path.
type entry struct {
	Name  string
	Kind  kind
	Stamp stamp
	Holes int64 // bytes that its disk does not keep: it is sparse
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
	Path  string
	Write bool // the origin sends; else it receives
	Stamp stamp
	How   partOptions
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

// withCode gives an error of a target the code by which the origin recognizes it.
func withCode(err error) error {
	if err == nil {
		return nil
	}
	return hg.Errorf(codeOf(err), "%w", err)
}

// ErrNoSource is that of a source that is not there.
var ErrNoSource = fmt.Errorf("%w", fs.ErrNotExist)

// Refused reports whether the target refuses the copy, and will refuse it again: it has no such path or method, or permits nothing of the kind.
func Refused(err error) bool {
	if _, ok := hg.RemoteOf(err); !ok {
		return errors.Is(err, ErrNoSource)
	}
	code := codeOf(err)
	return code == na.ErrPermission || code == na.ErrNoEntry || code == na.ErrNoMethod
}

// Interrupted reports whether err is about the network, about what else the target did meanwhile, or an interrupt, rather than
// about the files: the copy can go on.
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
