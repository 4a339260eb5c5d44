package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// A record holds the stamp of the source of a part, the verified length, and its checksum.
type record struct {
	Size    int64  `json:"source_size"`
	ModTime int64  `json:"source_mtime_ns"`
	At      int64  `json:"verified"`
	CRC     uint32 `json:"crc32c"`
}

// recordSize is the length of the file: one line, filled with blanks, so that each record replaces the one before with a
// single write.
const recordSize = 256

// A journal keeps the last record beside a part: the first one says that the part is that of a transfer. It is locked while
// it is open.
type journal struct {
	disk *disk
	name string
	f    *os.File
	at   int64 // of the record that is in it
}

// errLocked is the error of a part that another transfer is writing.
var errLocked = errors.New("locked by another transfer")

// errEmpty is the error of a journal without a record.
var errEmpty = errors.New("the journal is empty")

// openJournal opens a journal, which it makes if there is none, and keeps other transfers away from it until it is closed.
// Of one that another transfer has open it is errLocked.
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
		_ = f.Close() // of a transfer that has just ended
	}
}

// read returns the record, or errEmpty. A file that is no journal is errNotOurs.
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

// close closes the journal, which another transfer may have then; with remove it is removed before that, unless its name is
// another file's.
func (j *journal) close(remove bool) {
	if remove && j.disk.isNamed(j.f, j.name) {
		_ = j.disk.root.Remove(j.name)
	}
	_ = j.f.Close()
}
