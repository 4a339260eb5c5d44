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

// partSuffix marks a file that is not complete.
const partSuffix = ".qs-part"

// A part is a file that is being received.
//
//	NAME.qs-part ◄─ write … verify, write … verify, …      NAME.qs-part.journal: how far, and the checksum so far
//	     │ commit: complete and verified
//	     ▼
//	NAME, with mode and time of the source
//
// The journal is made before the part and removed after it. A transfer keeps it locked, so that one writes the part at a time.
// A part that was left behind is gone on with if the source's stamp is the same, and if check finds in it the bytes that the
// journal promises. A file that no transfer of this user has made is never written to: see createOrOpen.
type part struct {
	disk      *disk
	name      string
	stamp     stamp
	f         *os.File
	sums      sums
	room      int64 // is reserved up to here
	journal   *journal
	journaled int64 // by the journal; check has verified sums.at bytes of it
	crc       uint32
	sha       bool
	sparse    bool   // what is zero is not written
	stream    bool   // stamp.Size is known at the end
	cut       bool   // of sparse: nothing is behind sums.at, so what is not written is zero
	failed    error  // the first write that failed: sums are ahead of the file since then
	note      string // why a part was not gone on with
	done      bool   // it has become the file
}

// reserveStep is how much room is reserved at a time, of files that are longer: some file systems fill all of it with pages
// then, and the network is not to wait for that.
const reserveStep = 16 << 20

// errSame is the result for a file that is already there with the same stamp.
var errSame = errors.New("the file exists already")

// openPart begins or goes on with a part of name.
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
	case j.At == 0: // nobody began, or nothing was verified
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

// kindText describes the kind of a file that is not regular.
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

// NoDirectory begins the text of the error for a part whose directory is missing.
const NoDirectory = "there is no directory"

// open opens the journal and the part, and returns the record of the journal.
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

// openFile opens the part. One that no journal knows is this user's own file, unless it is empty. One that others may have
// open by now, which has the rights of the source, or the user's, is not used any more.
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

// verifyNext looks at a step of what was left behind and returns how much there is still to look at. Bytes that are not what
// the journal says are not used. It comes before the first piece.
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

// Verified is called when a piece has been verified and noted. Tests stop a transfer here.
var Verified = func(at int64) {}

// chunkSize is how many bytes are summed and written in one go: few enough to be in the processor's cache the second time, and
// enough for the file system to keep them in large units.
const chunkSize = 1 << 20

// write adds the next bytes. They do not count until they are verified.
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

// writeSparse writes the bytes that are not zero, and extends the file to its end, also when that is a hole.
func (p *part) writeSparse(b []byte, at int64) error {
	if !p.cut { // an earlier transfer may have written more than it has verified
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

// makeRoom reserves the next bytes, from at on, if they are not reserved.
func (p *part) makeRoom(at int64) error {
	if p.stamp.Size <= reserveStep || at < p.room {
		return nil
	}
	n := min(reserveStep, p.stamp.Size-at)
	p.room = at + n
	return reserveSpace(p.f, at, n)
}

// verify compares the checksum of all that was written with the source's, and notes how far it is.
func (p *part) verify(crc uint32) error {
	if p.failed != nil {
		return p.failed
	}
	if p.sums.crc != crc {
		return p.newDamagedError(fmt.Sprintf("CRC-32C of the first %d bytes is %08x, want %08x", p.sums.at, p.sums.crc, crc))
	}
	if !p.stream && p.sums.at < p.stamp.Size { // else it is complete in a moment
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

// commit makes the part the file, if it is complete and has the source's checksums. With toDisk it waits until a loss of
// power can do no harm.
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

// requireNamed returns an error if the name of the part is no longer that of the open file. Somebody may have removed the part,
// and with the journal its lock, and a second transfer may have made new ones.
func (p *part) requireNamed() error {
	if name := p.name + partSuffix; !p.disk.isNamed(p.f, name) {
		return fmt.Errorf("%s was removed or replaced during the transfer; run the same command again: %w", name, na.ErrIO)
	}
	return nil
}

// isNamed reports whether name is that of an open file.
func (d *disk) isNamed(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := d.root.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// close leaves the part for another time. One of which nothing was verified is of no use. The part and the journal of a
// second transfer, which has the names by now, stay.
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

// sync writes a directory to the disk, where the system can do that.
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
