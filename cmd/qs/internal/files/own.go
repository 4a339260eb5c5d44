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
	// errNotOurs is the error for a file that has the name of a part or a journal but was not created by a transfer.
	// Such a file is not modified.
	errNotOurs = fmt.Errorf("move it away or name another destination: %w", na.ErrExists)
	// errShared is the error for a file that other users have permission to access, since they may have it open.
	errShared = fmt.Errorf("can be read or written by other users: %w", errNotOurs)
)

// createOrOpen opens a file that only this user can access for reading and writing, and reports whether it was created.
// It opens an existing file only if the file looks like one that createOrOpen creates: regular, with a single link,
// owned by this user, and not accessible to others. The content of an existing file is kept. For any other file the
// error is errNotOurs.
func (d *disk) createOrOpen(name string) (f *os.File, made bool, err error) {
	const flags = os.O_RDWR | nonBlock // nonBlock, because the file may be replaced by a pipe concurrently
	for {
		f, err = d.root.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600) // O_EXCL does not follow links
		if !errors.Is(err, fs.ErrExist) {
			return f, true, err
		}
		before, err := d.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed concurrently
		}
		if err == nil {
			err = d.requireOurs(name, before)
		}
		if err != nil {
			return nil, false, err
		}
		f, err = d.root.OpenFile(name, flags, 0)
		if errors.Is(err, fs.ErrPermission) && d.root.Chmod(name, 0o600) == nil { // the file already had its final mode when its commit failed
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

// requireOurs returns errNotOurs, with the reason, if info describes a file that createOrOpen cannot have created.
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

// createProbe returns the owner and permissions of a new file in dir. Some file systems do not support them, or assign
// others than those of this process.
func (d *disk) createProbe(dir string) (fs.FileInfo, error) {
	name := path.Join(dir, ".qs-probe-"+rand.Text())
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close(), d.root.Remove(name))
}
