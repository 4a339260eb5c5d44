package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// partSuffix is the suffix of the name of an incomplete file.
const partSuffix = ".qs-part"

// A part is an incomplete file that is being received. The part of NAME is called NAME.qs-part, and its journal
// NAME.qs-part.journal. The journal records how many bytes of the part have been verified, and their checksum. When the
// part is complete and verified, commit gives it the source's mode and modification time and renames it to NAME.
//
// The journal is created before the part and removed after it. A transfer keeps the journal locked, so that only one
// transfer at a time writes the part. An existing part is resumed if the source's stamp is unchanged and the part
// contains the bytes that the journal describes. A file that was not created by a transfer of this user is never
// written; see createOrOpen.
type part struct {
	disk      *disk
	name      string
	stamp     stamp
	f         *os.File
	sums      sums
	room      int64 // offset of the end of the reserved space
	journal   *journal
	journaled int64 // number of verified bytes when the part was opened; the first sums.at of them have been verified again
	crc       uint32
	sha       bool
	sparse    bool   // blocks of zeros are not written
	stream    bool   // stamp.Size is unknown until commit
	cut       bool   // for sparse parts: the file has been truncated, so that unwritten data is zero
	failed    error  // error of the first failed write, after which sums no longer match the file
	note      string // reason why an existing part was not resumed
	done      bool   // the part has been renamed to the file
}

// reserveStep is the number of bytes of disk space that are reserved at a time for a large file. Some file systems
// allocate the pages of the whole step at once, which must not delay the network for long.
const reserveStep = 16 << 20

// errSame is returned when the file already exists with the same stamp.
var errSame = errors.New("the file exists already")

// openPart creates a part of the file name, or opens an existing part to resume it. It returns errSame if the file
// already exists with the stamp st.
func (d *disk) openPart(name string, st stamp, o partOptions) (*part, error) {
	name, err := cleanPath(name)
	if err != nil {
		return nil, err
	}
	if st.Size < 0 {
		return nil, fmt.Errorf("%s: invalid size %d: %w", name, st.Size, na.ErrInvalid)
	}
	switch info, err := d.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory; add a trailing / to copy into it: %w", name, na.ErrExists)
	case info.Mode().Type() == fs.ModeSymlink:
		return nil, fmt.Errorf("%s is a symbolic link; use its target, or remove the link: %w", name, na.ErrExists)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is %s and is not replaced; use another name, or remove it: %w", name, kindText(info.Mode()), na.ErrExists)
	case !o.Anew && stampOf(info) == st:
		return nil, errSame
	}
	p := &part{disk: d, name: name, stamp: st, sha: o.SHA256, sums: newSums(o.SHA256), sparse: o.Holes > 0, stream: o.Stream}
	j, err := p.open()
	if err != nil {
		return nil, err
	}
	switch {
	case j.At == 0: // the part is new, or none of its data was verified
	case o.Anew:
		p.note = name + ": the partial file is not used"
	case j.Size != st.Size || j.ModTime != st.ModTime || j.At > st.Size:
		p.note = name + ": the source has changed since the interrupted transfer; starting over"
	default:
		p.journaled, p.crc = j.At, j.CRC
	}
	if p.journaled == 0 {
		err = p.reset()
	}
	if err == nil {
		err = requireRoom(p.f, st.Size-min(max(o.Holes, 0), st.Size))
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// kindText returns a description of a file that is not regular.
func kindText(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe (FIFO)"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "not a regular file"
}

// NoDirectory is the prefix of the error returned when the directory of a part does not exist.
const NoDirectory = "there is no directory"

// open opens the journal and the part. It returns the record that the journal contains.
func (p *part) open() (j record, err error) {
	p.journal, err = p.disk.openJournal(p.name + partSuffix + ".journal")
	switch {
	case errors.Is(err, errLocked):
		return j, newInUseError(p.name, "")
	case errors.Is(err, fs.ErrNotExist):
		return j, show.Reword(err, fmt.Sprintf("%s %s below the root", NoDirectory, path.Dir(p.name)))
	case err != nil:
		return j, fmt.Errorf("%s: %w", p.name, err)
	}
	j, err = p.journal.read()
	empty := errors.Is(err, errEmpty)
	if empty {
		err = p.journal.write(record{Size: p.stamp.Size, ModTime: p.stamp.ModTime})
	}
	if err == nil {
		err = p.openFile(!empty)
	}
	if err != nil {
		p.journal.close(empty)
		return j, fmt.Errorf("%s: %w", p.name, err)
	}
	return j, nil
}

// openFile opens the part's file. The parameter known reports whether a journal describes the file. A file without a
// journal belongs to the user unless it is empty. openFile replaces a file that is described by a journal but
// accessible to other users, because they may have opened it.
func (p *part) openFile(known bool) (err error) {
	name := p.name + partSuffix
	var made bool
	p.f, made, err = p.disk.createOrOpen(name)
	if known && errors.Is(err, errShared) {
		if err = p.disk.root.Remove(name); err == nil {
			p.f, made, err = p.disk.createOrOpen(name)
		}
	}
	if made || known || err != nil {
		return err
	}
	info, err := p.f.Stat()
	if err == nil && info.Size() > 0 {
		err = fmt.Errorf("%s is not of an interrupted transfer: %w", name, errNotOurs)
	}
	if err != nil {
		return errors.Join(err, p.f.Close())
	}
	return nil
}

func (p *part) reset() error {
	p.journaled, p.sums = 0, newSums(p.sha)
	if err := p.journal.write(record{Size: p.stamp.Size, ModTime: p.stamp.ModTime}); err != nil {
		return err
	}
	return p.f.Truncate(0)
}

// verifyNext verifies the next step of an existing part and returns the number of bytes that remain to be verified. If
// the data does not match the journal, the part starts over. It must be called until it returns 0, before the first
// piece is written.
func (p *part) verifyNext() (left int64, err error) {
	if p.sums.at > p.journaled {
		return 0, fmt.Errorf("%s: nothing to verify after the first chunk: %w", p.name, na.ErrProtocol)
	}
	err = p.sums.addFrom(p.f, min(p.journaled, p.sums.at+seekStep))
	switch {
	case errors.Is(err, io.EOF):
	case err != nil:
		return 0, err
	case p.sums.at < p.journaled:
		return p.journaled - p.sums.at, nil
	case p.sums.crc == p.crc:
		return 0, nil
	}
	p.note = p.name + ": the partial file is damaged; starting over"
	return 0, p.reset()
}

// Verified is called after a piece has been verified and recorded in the journal. Tests replace it to interrupt a
// transfer.
var Verified = func(at int64) {}

// chunkSize is the number of bytes that are summed and then written at a time. The bytes must fit in the processor's
// cache, so that both steps find them there, and must be numerous enough for the file system to store them in large
// extents.
const chunkSize = 1 << 20

// write appends b, which must start at the given offset of the file. The data counts only after verify has succeeded.
func (p *part) write(offset int64, b []byte) error {
	if p.failed != nil {
		return p.failed
	}
	if offset != p.sums.at || !p.stream && int64(len(b)) > p.stamp.Size-offset || offset < p.journaled {
		return fmt.Errorf("%s: chunk at offset %d, want %d: %w", p.name, offset, p.sums.at, na.ErrProtocol)
	}
	for b := range slices.Chunk(b, chunkSize) {
		at := p.sums.at
		p.sums.add(b)
		if p.sparse {
			p.failed = p.writeSparse(b, at)
		} else if p.failed = p.makeRoom(at); p.failed == nil {
			_, p.failed = p.f.WriteAt(b, at)
		}
		if p.failed != nil {
			return p.failed
		}
	}
	return nil
}

// writeSparse writes b at offset at, except blocks of zeros. It extends the file to the end of b even if b ends with
// zeros.
func (p *part) writeSparse(b []byte, at int64) error {
	if !p.cut { // an earlier transfer may have written data that it did not verify
		if err := p.f.Truncate(at); err != nil {
			return err
		}
		p.cut = true
	}
	if err := writeSparse(p.f, b, at); err != nil {
		return err
	}
	return p.f.Truncate(at + int64(len(b)))
}

// makeRoom reserves disk space for the next reserveStep bytes, starting at offset at, unless the space is already
// reserved.
func (p *part) makeRoom(at int64) error {
	if p.stamp.Size <= reserveStep || at < p.room {
		return nil
	}
	n := min(reserveStep, p.stamp.Size-at)
	p.room = at + n
	return reserveSpace(p.f, at, n)
}

// verify returns an error if crc is not the checksum of all data written so far. Otherwise it records in the journal
// that the data is verified.
func (p *part) verify(crc uint32) error {
	if p.failed != nil {
		return p.failed
	}
	if p.sums.crc != crc {
		return p.newDamagedError(fmt.Sprintf("CRC-32C of the first %d bytes is %08x, want %08x", p.sums.at, p.sums.crc, crc))
	}
	if !p.stream && p.sums.at < p.stamp.Size { // a complete part is committed immediately and needs no record
		if err := p.journal.write(record{p.stamp.Size, p.stamp.ModTime, p.sums.at, crc}); err != nil {
			return err
		}
	}
	Verified(p.sums.at)
	return nil
}

func (p *part) newDamagedError(text string) error {
	return fmt.Errorf("%s is corrupt: %s: %w", p.name, text, na.ErrChecksum)
}

// commit renames the part to the file. It returns an error if the part is incomplete or its checksums differ from crc
// and sha. If toDisk is true, commit waits until the data is on disk, so that the file survives a power failure.
func (p *part) commit(crc uint32, sha []byte, toDisk bool) error {
	if p.stream {
		p.stamp.Size = p.sums.at
	}
	switch {
	case p.failed != nil:
		return p.failed
	case p.sums.at != p.stamp.Size:
		return fmt.Errorf("%s: received %d of %d bytes: %w", p.name, p.sums.at, p.stamp.Size, na.ErrProtocol)
	case p.sums.crc != crc || !bytes.Equal(p.sums.digest(), sha):
		text := fmt.Sprintf("its checksums are %08x %x, want %08x %x", p.sums.crc, p.sums.digest(), crc, sha)
		return errors.Join(p.newDamagedError(text), p.reset())
	}
	part := p.name + partSuffix
	root := p.disk.root
	err := p.f.Truncate(p.stamp.Size)
	if err == nil && toDisk {
		err = p.f.Sync()
	}
	if err == nil {
		err = p.f.Chmod(fs.FileMode(p.stamp.Mode) & fs.ModePerm)
	}
	if err == nil {
		err = p.requireNamed()
	}
	if err == nil {
		err = root.Chtimes(part, p.stamp.modTime(), p.stamp.modTime())
	}
	if closeErr := p.f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = root.Rename(part, p.name)
	}
	if err != nil {
		return err
	}
	p.done = true
	p.journal.close(true)
	if toDisk {
		return p.disk.sync(path.Dir(p.name))
	}
	return nil
}

// requireNamed returns an error if the part's name no longer refers to the open file. This happens if the part and its
// journal, which holds the lock, were removed. A second transfer may then have created new ones.
func (p *part) requireNamed() error {
	if name := p.name + partSuffix; !p.disk.isNamed(p.f, name) {
		return fmt.Errorf("%s was removed or replaced during the transfer; run the same command again: %w", name, na.ErrIO)
	}
	return nil
}

// isNamed reports whether name still refers to the open file f.
func (d *disk) isNamed(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := d.root.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// close closes the part. It keeps the file and the journal for a later transfer if some data has been verified, and
// removes them otherwise. It does not modify files with the same names that a second transfer has created.
func (p *part) close() {
	if p.done {
		return
	}
	useful := p.journal.at > 0 || !p.disk.isNamed(p.journal.f, p.journal.name)
	_ = p.f.Close()
	if !useful {
		_ = p.disk.root.Remove(p.name + partSuffix)
	}
	p.journal.close(!useful)
}

// sync flushes a directory to disk, if the system supports that.
func (d *disk) sync(dir string) error {
	f, err := d.root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && runtime.GOOS != "windows" {
		return err
	}
	return nil
}
