package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A store is a tree of files, either on this machine or at a target.
type store interface {
	// stat describes the file at path. If the file does not exist, stat returns an entry of kind missing and no error.
	stat(ctx context.Context, path string) (entry, error)
	// list returns entries of a directory, sorted by name, starting with the first name after the name after. It may
	// return only some of them. It returns no entries if there are no names after that name.
	list(ctx context.Context, dir, after string) ([]entry, error)
	// mkdir creates a directory and its parents, unless they exist.
	mkdir(ctx context.Context, path string, mode uint32) error
}

// A disk is a tree of files on this machine. It uses os.Root, so that "..", absolute paths and symbolic links cannot
// refer to files outside the tree.
type disk struct{ root *os.Root }

var _ store = (*disk)(nil)

func openDisk(folder string) (*disk, error) {
	root, err := os.OpenRoot(folder)
	return &disk{root}, err
}

func (d *disk) close() {
	if d.root != nil {
		_ = d.root.Close()
	}
}

// cleanPath returns p in the form that os.Root requires. If os.Root would reject p for a reason other than symbolic
// links, cleanPath returns an error that states the reason.
func cleanPath(p string) (string, error) {
	clean := path.Clean(p)
	if strings.ContainsRune(p, 0) || !filepath.IsLocal(filepath.FromSlash(clean)) {
		return "", fmt.Errorf("%q is outside of the root; use a relative path below it: %w", p, na.ErrPermission)
	}
	return clean, nil
}

// open opens a regular file for reading. It rejects other files, because opening a pipe may block indefinitely.
func (d *disk) open(name string) (*os.File, fs.FileInfo, error) {
	f, err := d.root.OpenFile(name, os.O_RDONLY|nonBlock, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file: %w", name, na.ErrInvalid)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

func (d *disk) stat(_ context.Context, p string) (entry, error) {
	p, err := cleanPath(p)
	if err != nil {
		return entry{}, err
	}
	info, err := d.root.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return entry{Name: p}, nil
	}
	if err != nil {
		if link, failed := d.root.Lstat(p); failed == nil && link.Mode().Type() == fs.ModeSymlink {
			return entry{}, fmt.Errorf("%s is a symbolic link that is not followed (%w); use its target, or remove it", p, err)
		}
		return entry{}, err
	}
	return entry{p, kindOf(info.Mode()), stampOf(info), holesOf(info)}, nil
}

func (d *disk) list(_ context.Context, dir, after string) ([]entry, error) {
	dir, err := cleanPath(dir)
	if err != nil {
		return nil, err
	}
	f, err := d.root.OpenFile(dir, os.O_RDONLY|nonBlock, 0) // dir may be the name of a pipe, and opening it must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	var entries []entry
	for _, name := range names[from:] {
		if len(entries) == listMax {
			break
		}
		info, err := d.root.Lstat(path.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file was removed concurrently
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name, kindOf(info.Mode()), stampOf(info), holesOf(info)})
	}
	return entries, nil
}

func (d *disk) mkdir(_ context.Context, p string, mode uint32) error {
	p, err := cleanPath(p)
	if err != nil {
		return err
	}
	switch info, err := d.root.Stat(p); {
	case err == nil && info.IsDir():
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := d.root.MkdirAll(path.Dir(p), 0o777); err != nil {
		return err
	}
	err = d.root.Mkdir(p, fs.FileMode(mode)&fs.ModePerm|0o700) // the owner must be able to create files in the directory
	if errors.Is(err, fs.ErrExist) {
		if info, failed := d.root.Stat(p); failed == nil && info.IsDir() {
			return nil // the directory was created concurrently
		}
	}
	return err
}
