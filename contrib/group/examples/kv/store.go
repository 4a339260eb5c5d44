package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// A Version orders the values of a key: a count, and for two writers at once their names.
type Version struct {
	N      uint64
	Writer string
}

func (v Version) compare(o Version) int {
	return cmp.Or(cmp.Compare(v.N, o.N), cmp.Compare(v.Writer, o.Writer))
}

// A Record is a key with its value.
type Record struct {
	Key     string
	Version Version
	Value   []byte
}

// A Store keeps records. Put returns when the record would survive a crash; an older one than is there changes nothing.
type Store interface {
	Get(key string) (Record, error) // the zero Version if there is none
	Put(r Record) error
	List() (map[string]Version, error)
	// Whole says whether the store has been complete since it was made; SetWhole says that it is.
	Whole() bool
	SetWhole() error
}

// A dir is a Store of one file for each key.
type dir struct {
	path string
	mu   sync.Mutex // held while a key is compared and replaced
}

const wholeFile = "whole"

func openDir(path string) (*dir, error) {
	d := &dir{path: path}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	parts, err := filepath.Glob(filepath.Join(path, "part-*"))
	for _, part := range parts { // of writes that nobody was told of
		err = errors.Join(err, os.Remove(part))
	}
	return d, err
}

func (d *dir) file(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(d.path, "key-"+hex.EncodeToString(sum[:]))
}

func (d *dir) read(file string) (r Record, err error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, nil
	}
	if err == nil {
		err = msgpack.Unmarshal(b, &r)
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", file, err)
	}
	return r, err
}

// Get implements Store.
func (d *dir) Get(key string) (Record, error) {
	r, err := d.read(d.file(key))
	r.Key = key
	return r, err
}

// Put implements Store.
func (d *dir) Put(r Record) error {
	b, err := msgpack.Marshal(&r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(d.path, "part-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // unless it was renamed
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was, err := d.Get(r.Key)
	if err != nil || was.Version.compare(r.Version) >= 0 {
		return err
	}
	if err := os.Rename(f.Name(), d.file(r.Key)); err != nil {
		return err
	}
	return d.sync()
}

// sync makes what was renamed survive.
func (d *dir) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// List implements Store.
func (d *dir) List() (map[string]Version, error) {
	all := map[string]Version{}
	entries, err := os.ReadDir(d.path)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "key-") {
			r, err := d.read(filepath.Join(d.path, e.Name()))
			if err != nil {
				return nil, err
			}
			all[r.Key] = r.Version
		}
	}
	return all, err
}

// Whole implements Store.
func (d *dir) Whole() bool {
	_, err := os.Stat(filepath.Join(d.path, wholeFile))
	return err == nil
}

// SetWhole implements Store.
func (d *dir) SetWhole() error {
	return errors.Join(os.WriteFile(filepath.Join(d.path, wholeFile), nil, 0o600), d.sync())
}
