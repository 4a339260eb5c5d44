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
	// errNotOurs is the error of a file with the name of a part or a journal that no transfer has created. It is left as it is.
	errNotOurs = fmt.Errorf("move it away or name another destination: %w", na.ErrExists)
	// errShared is the error of a file with rights for other users, who may have it open.
	errShared = fmt.Errorf("can be read or written by other users: %w", errNotOurs)
)

// createOrOpen opens a file for reading and writing that only this user can reach, and reports whether it has just made it.
// A file that is there is opened only if it is like one that createOrOpen makes: regular, with one name, of this user, and
// without rights for others; what it holds is left. Everything else is errNotOurs.
func (d *disk) createOrOpen(name string) (f *os.File, made bool, err error) {
	const flags = os.O_RDWR | nonBlock // nonBlock: it may become a pipe at this moment
	for {
		f, err = d.root.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600) // O_EXCL: follows no link
		if !errors.Is(err, fs.ErrExist) {
			return f, true, err
		}
		before, err := d.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed at this moment
		}
		if err == nil {
			err = d.requireOurs(name, before)
		}
		if err != nil {
			return nil, false, err
		}
		f, err = d.root.OpenFile(name, flags, 0)
		if errors.Is(err, fs.ErrPermission) && d.root.Chmod(name, 0o600) == nil { // it had its mode already when its commit failed
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
		_ = f.Close() // another one has its name by now
	}
}

// requireOurs returns errNotOurs, with the reason, if info is not of a file that createOrOpen can have made.
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

// createProbe returns the owner and the rights of a new file in dir. Some file systems have no owners or rights, or others than this process
// has.
func (d *disk) createProbe(dir string) (fs.FileInfo, error) {
	name := path.Join(dir, ".qs-probe-"+rand.Text())
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	return info, errors.Join(err, f.Close(), d.root.Remove(name))
}
