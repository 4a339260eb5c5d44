package files

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A record says of which source a part is, how far it is verified, and its checksum up to there.
type record struct {
	Size    int64  `json:"source_size"`
	ModTime int64  `json:"source_mtime_ns"`
	At      int64  `json:"verified"`
	CRC     uint32 `json:"crc32c"`
}

// recordSize is the length of the file: one line, filled with blanks, so that each record replaces the one before with a
// single write.
const recordSize = 256

// A journal keeps the last record beside a part. There is none before the first piece is verified, and so none for files
// of one piece.
type journal struct {
	disk    *disk
	name    string
	f       *os.File
	written bool
}

func (j *journal) read() (record, error) {
	var r record
	f, _, err := j.disk.open(j.name)
	if err != nil {
		return r, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, recordSize+1))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err == nil && r.At < 0 {
		err = na.ErrInvalid
	}
	return r, err
}

// open leaves the record that is there until the next one replaces it.
func (j *journal) open() (err error) {
	if j.f == nil {
		j.f, err = j.disk.root.OpenFile(j.name, os.O_WRONLY|os.O_CREATE, 0o600)
	}
	return err
}

func (j *journal) write(r record) error {
	if err := j.open(); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, err = j.f.WriteAt(fmt.Appendf(nil, "%-*s\n", recordSize-1, text), 0)
	}
	j.written = j.written || err == nil
	return err
}

func (j *journal) close() {
	if j.f != nil {
		_ = j.f.Close()
		j.f = nil
	}
}

func (j *journal) remove() {
	j.close()
	j.written = false
	_ = j.disk.root.Remove(j.name)
}
