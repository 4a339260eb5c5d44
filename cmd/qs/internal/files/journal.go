package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// A record describes the verified data of a part. It holds the size and modification time of the part's source, the
// number of verified bytes, and their checksum.
type record struct {
	Size    int64  `json:"source_size"`
	ModTime int64  `json:"source_mtime_ns"`
	At      int64  `json:"verified"`
	CRC     uint32 `json:"crc32c"`
}

// recordSize is the size of the journal file, in bytes. The file is a single line, padded with blanks, so that a single
// write replaces the previous record.
const recordSize = 256

// A journal stores the latest record of a part in a separate file. Its first record shows that the part belongs to a
// transfer. The journal is locked while it is open.
type journal struct {
	disk *disk
	name string
	f    *os.File
	at   int64 // number of verified bytes according to the stored record
}

// errLocked is returned when another transfer is writing the same part.
var errLocked = errors.New("locked by another transfer")

// errEmpty is returned when a journal contains no record.
var errEmpty = errors.New("the journal is empty")

// openJournal opens a journal, creating it if necessary, and locks it until it is closed. It returns errLocked if
// another transfer has locked the journal.
func (d *disk) openJournal(name string) (*journal, error) {
	for {
		f, _, err := d.createOrOpen(name)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if there, err := d.root.Lstat(name); err == nil && os.SameFile(mine, there) {
			return &journal{disk: d, name: name, f: f}, nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, f.Close())
		}
		_ = f.Close() // the file belonged to a transfer that has just ended
	}
}

// read returns the stored record. It returns errEmpty if there is none, and errNotOurs if the file is not a journal.
func (j *journal) read() (r record, err error) {
	b, err := io.ReadAll(io.NewSectionReader(j.f, 0, recordSize+1))
	switch {
	case err != nil:
		return r, err
	case len(b) == 0:
		return r, errEmpty
	case len(b) != recordSize || json.Unmarshal(b, &r) != nil || r.At < 0:
		return record{}, fmt.Errorf("%s is not a journal of qs cp: %w", j.name, errNotOurs)
	}
	j.at = r.At
	return r, nil
}

func (j *journal) write(r record) error {
	text, err := json.Marshal(r)
	if err == nil {
		_, err = j.f.WriteAt(fmt.Appendf(nil, "%-*s\n", recordSize-1, text), 0)
	}
	if err == nil {
		j.at = r.At
	}
	return err
}

// close closes and unlocks the journal. If remove is true, it first removes the journal file, unless the file's name
// now refers to another file.
func (j *journal) close(remove bool) {
	if remove && j.disk.isNamed(j.f, j.name) {
		_ = j.disk.root.Remove(j.name)
	}
	_ = j.f.Close()
}
