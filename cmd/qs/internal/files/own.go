package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/quicksilver-rpc/quicksilver/na"
)

var (
	// errNotOurs is returned when a file has the name of a part or a journal but was not created by a transfer. Such a
	// file must not be modified.
	errNotOurs = fmt.Errorf("move it away or name another destination: %w", na.ErrExists)
	// errShared is returned when other users may access a file, because they may already have opened it.
	errShared = fmt.Errorf("can be read or written by other users: %w", errNotOurs)
)

// createOrOpen opens a file for reading and writing that only this user can access. It reports whether it created the
// file. It opens an existing file, without truncating it, only if the file is regular, has a single link, is owned by
// this user and is not accessible to other users, as is a file that createOrOpen creates. For any other file it returns
// errNotOurs.
func (d *disk) createOrOpen(name string) (f *os.File, made bool, err error) {
	const flags = os.O_RDWR | nonBlock // do not block if the file is concurrently replaced by a pipe
	for {
		f, err = d.root.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600) // O_EXCL does not follow links
		if !errors.Is(err, fs.ErrExist) {
			return f, true, err
		}
		before, err := d.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file was removed concurrently
		}
		if err == nil {
			err = d.requireOurs(name, before)
		}
		if err != nil {
			return nil, false, err
		}
		f, err = d.root.OpenFile(name, flags, 0)
		if errors.Is(err, fs.ErrPermission) && d.root.Chmod(name, 0o600) == nil { // a failed commit has already set the final mode
			f, err = d.root.OpenFile(name, flags, 0)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if after, err := f.Stat(); err == nil && os.SameFile(before, after) {
			return f, false, nil
		}
		_ = f.Close() // the name now refers to another file
	}
}

// requireOurs returns an error that wraps errNotOurs and states the reason if createOrOpen cannot have created the file
// that info describes.
func (d *disk) requireOurs(name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is %s: %w", name, kindText(info.Mode()), errNotOurs)
	}
	if countLinks(info) > 1 {
		return fmt.Errorf("%s is a file with other names (hard links): %w", name, errNotOurs)
	}
	made, err := d.createProbe(path.Dir(name))
	if err != nil {
		return err
	}
	if ownerOf(info) != ownerOf(made) {
		return fmt.Errorf("%s belongs to another user: %w", name, errNotOurs)
	}
	if othersRights(info)&^othersRights(made) != 0 {
		return fmt.Errorf("%s %w", name, errShared)
	}
	return nil
}

func othersRights(info fs.FileInfo) fs.FileMode { return info.Mode().Perm() & 0o077 }

// createProbe returns the file information of a new file in dir, from which the caller learns the owner and permissions
// of new files. Some file systems assign others than those that this process requests.
func (d *disk) createProbe(dir string) (fs.FileInfo, error) {
	name := path.Join(dir, ".qs-probe-"+rand.Text())
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close(), d.root.Remove(name))
}
