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

// partSuffix is the suffix of incomplete files.
const partSuffix = ".qs-part"

// A part is a file that is being received.
//
//	NAME.qs-part ◄─ write … verify, write … verify, …      NAME.qs-part.journal: how far, and the checksum so far
//	     │ commit: complete and verified
//	     ▼
//	NAME, with mode and time of the source
//
// The journal is created before the part and removed after it. A transfer keeps it locked, so that only one transfer
// writes the part at a time. An existing part is resumed if the source's stamp is unchanged and the part contains the
// bytes that the journal describes. A file that was not created by one of this user's transfers is never written; see
// createOrOpen.
type part struct {
	disk      *disk
	name      string
	stamp     stamp
	f         *os.File
	sums      sums
	room      int64 // end of the reserved space
	journal   *journal
	journaled int64 // length according to the journal, of which sums.at bytes have been verified
	crc       uint32
	sha       bool
	sparse    bool   // zeros are not written
	stream    bool   // stamp.Size is known only at the end
	cut       bool   // for sparse parts: the file contains nothing after sums.at, so data that is not written is zero
	failed    error  // error of the first failed write, since which sums are ahead of the file
	note      string // why an existing part was not resumed
	done      bool   // the part has become the file
}

// reserveStep is the amount of space reserved at a time for longer files. Some file systems fill all of it with pages
// at once, and the network must not wait for that.
const reserveStep = 16 << 20

// errSame is the result for a file that already exists with the same stamp.
var errSame = errors.New("the file exists already")

// openPart creates or resumes a part of name.
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
	case j.At == 0: // new, or nothing was verified
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

// kindText describes the type of a file that is not regular.
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

// NoDirectory begins the text of the error for a part whose directory does not exist.
const NoDirectory = "there is no directory"

// open opens the journal and the part, and returns the journal's record.
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

// openFile opens the part. If no journal describes it, the file is the user's own unless it is empty. A file that
// others may have opened because it has the source's or the user's permissions is not used.
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

// verifyNext verifies the next step of an existing part and returns how many bytes are still to be verified. Bytes that
// do not match the journal are not used. It must be called before the first piece is written.
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

// Verified is called after a piece has been verified and recorded. Tests use it to stop a transfer.
var Verified = func(at int64) {}

// chunkSize is the number of bytes that are summed and written at a time. It is small enough for the bytes to stay in
// the processor's cache between the two steps, and large enough for the file system to store them in large extents.
const chunkSize = 1 << 20

// write appends the next bytes. They do not count until they are verified.
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

// writeSparse writes the bytes that are not zero, and extends the file to the end of b even if it ends with a hole.
func (p *part) writeSparse(b []byte, at int64) error {
	if !p.cut { // an earlier transfer may have written more than it verified
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

// makeRoom reserves the next step of space, starting at at, unless it is already reserved.
func (p *part) makeRoom(at int64) error {
	if p.stamp.Size <= reserveStep || at < p.room {
		return nil
	}
	n := min(reserveStep, p.stamp.Size-at)
	p.room = at + n
	return reserveSpace(p.f, at, n)
}

// verify compares the checksum of all data written so far with the source's, and records the verified length.
func (p *part) verify(crc uint32) error {
	if p.failed != nil {
		return p.failed
	}
	if p.sums.crc != crc {
		return p.newDamagedError(fmt.Sprintf("CRC-32C of the first %d bytes is %08x, want %08x", p.sums.at, p.sums.crc, crc))
	}
	if !p.stream && p.sums.at < p.stamp.Size { // otherwise the part will be complete in a moment
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

// commit turns the part into the file if it is complete and its checksums match the source's. If toDisk is true, it
// waits until the data would survive a power failure.
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

// requireNamed returns an error if the part's name no longer refers to the open file. The part may have been removed
// together with its journal, which holds the lock, and a second transfer may have created new ones.
func (p *part) requireNamed() error {
	if name := p.name + partSuffix; !p.disk.isNamed(p.f, name) {
		return fmt.Errorf("%s was removed or replaced during the transfer; run the same command again: %w", name, na.ErrIO)
	}
	return nil
}

// isNamed reports whether name refers to the open file f.
func (d *disk) isNamed(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := d.root.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// close closes the part and keeps it for a later transfer, unless nothing in it was verified. If a second transfer has
// taken over the names, its part and journal are not touched.
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

// sync flushes a directory to disk where the system supports it.
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
