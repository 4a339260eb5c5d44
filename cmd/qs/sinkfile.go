package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// openSink creates a temporary file in the directory of name. When the sink is closed successfully, the temporary file
// replaces the file name. If name refers to a file that is not regular, openSink opens it for writing directly. The
// name - means standard output.
func openSink(name string) (lentFile, error) {
	if name == "-" {
		return lentFile{f: os.Stdout, end: func(bool) error { return nil }}, nil
	}
	if real, err := filepath.EvalSymlinks(name); err == nil { // replace the link's target rather than the link
		name = real
	}
	mode := fs.FileMode(0)
	switch info, err := os.Stat(name); {
	case err == nil && info.IsDir():
		return lentFile{}, fmt.Errorf("%s is a directory", name)
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		return lentFile{f: f, end: func(bool) error { return f.Close() }}, err
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return lentFile{}, err
	}
	f, err := newPart(name)
	if err == nil && mode != 0 {
		err = f.Chmod(mode)
	}
	ended := false
	return lentFile{f: f, end: func(ok bool) error {
		if ended {
			return nil
		}
		ended = true
		err := f.Close()
		if ok && err == nil {
			err = os.Rename(f.Name(), name)
		}
		if !ok || err != nil {
			_ = os.Remove(f.Name())
		}
		return err
	}}, err
}

// newPart creates a file with a unique name in the directory of name.
func newPart(name string) (*os.File, error) {
	for i := 0; ; i++ {
		f, err := os.OpenFile(fmt.Sprintf("%s.qs-part%d", name, i), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}
