package sm

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A place is a name in the directory that this process listens at: a socket, and beside it a file that it holds locked as long as
// it lives. So a name whose lock is free belongs to nobody, whatever is left of it.
type place struct {
	path string
	fd   int // of the socket
	lock int
}

// backlog is how many processes may be about to connect; the system has a limit, too.
const backlog = 4096

// dir returns the directory of names.
func (o *Options) dir() string {
	switch run := os.Getenv("XDG_RUNTIME_DIR"); {
	case o.Dir != "":
		return o.Dir
	case filepath.IsAbs(run):
		return filepath.Join(run, "quicksilver")
	}
	return fmt.Sprintf("/tmp/quicksilver-%d", os.Geteuid())
}

// path returns the address of the socket of a name.
func (o *Options) path(name string) (string, error) {
	p := filepath.Join(o.dir(), name)
	if len(p) > 107 {
		return "", na.WithText(na.ErrInvalid, fmt.Sprintf("the path %s of a socket has %d bytes, the system allows 107", p, len(p)))
	}
	return p, nil
}

// makeDir makes the directory if need be, and checks that nobody else has a hand in it.
func (o *Options) makeDir() error {
	dir := o.dir()
	if o.AnyUser && o.Dir == "" {
		return na.WithText(na.ErrInvalid, "sm: options: AnyUser is true and Dir is empty, want a directory that the users share")
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return na.WithText(na.ErrIO, "make the directory of names: "+err.Error())
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return na.WithText(na.ErrIO, "make the directory of names: "+err.Error())
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return na.WithText(na.ErrIO, "look at the directory of names "+dir+": "+err.Error())
	}
	bad := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		bad = "is not a directory"
	case o.AnyUser:
	case int(st.Uid) != os.Geteuid():
		bad = fmt.Sprintf("belongs to user %d, this process to %d", st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		bad = fmt.Sprintf("has mode %#o, want 0700: others have access", st.Mode&0o777)
	}
	if bad != "" {
		return na.WithText(na.ErrPermission, "the directory of names "+dir+" "+bad)
	}
	return nil
}

// dirID identifies the directory of names: processes with the same one find each other. It is empty when there is none.
func (o *Options) dirID() string {
	var st unix.Stat_t
	if unix.Stat(o.dir(), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%x:%x", st.Dev, st.Ino)
}

// listen takes a name, and returns it: one that ends in * is completed.
func (o *Options) listen(name string) (*place, string, error) {
	front, open := strings.CutSuffix(name, "*")
	if open {
		var b [6]byte
		_, _ = rand.Read(b[:])
		name = fmt.Sprintf("%s%d-%s", front, os.Getpid(), hex.EncodeToString(b[:]))
	}
	if err := checkName(name); err != nil {
		return nil, "", notValid(scheme+"://"+name, err.Error())
	}
	if err := o.makeDir(); err != nil {
		return nil, "", err
	}
	path, err := o.path(name)
	if err != nil {
		return nil, "", err
	}
	o.sweep()
	p := &place{path: path, fd: -1}
	if p.lock, err = lock(path + lockSuffix); err != nil {
		if err == unix.EAGAIN {
			return nil, "", na.WithText(na.ErrAddrInUse, "another process listens on sm://"+name)
		}
		return nil, "", na.WithText(na.ErrIO, "lock "+path+lockSuffix+": "+err.Error())
	}
	if err := p.bind(o.AnyUser); err != nil {
		p.close()
		return nil, "", na.WithText(na.ErrIO, "listen on "+path+": "+err.Error())
	}
	return p, name, nil
}

func (p *place) bind(anyUser bool) (err error) {
	_ = unix.Unlink(p.path) // of one who died
	if p.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		p.fd = -1
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrUnix{Name: p.path}); err != nil {
		return err
	}
	mode := uint32(0o600)
	if anyUser {
		mode = 0o666
	}
	if err := unix.Chmod(p.path, mode); err != nil {
		return err
	}
	return unix.Listen(p.fd, backlog)
}

// close gives the name back.
func (p *place) close() {
	if p.fd >= 0 {
		_ = unix.Unlink(p.path)
		_ = unix.Close(p.fd)
	}
	unlock(p.path+lockSuffix, p.lock)
}

// A listener locks the first byte of its lock file for as long as it lives. A process that only checks whether the owner is alive
// locks two bytes, for a moment. So the length of a conflicting lock tells which of them holds it.
const (
	lives = 1
	looks = 2
)

// looksAtMost is how long lock waits for a process that only checks. One that is stopped may hold its lock for longer.
const looksAtMost = 2 * time.Second

// lock creates the lock file if need be, and locks it for a listener. The error is EAGAIN if another one holds it.
func lock(path string) (fd int, err error) {
	for end := time.Now().Add(looksAtMost); ; time.Sleep(100 * time.Microsecond) {
		var holder int64
		if fd, holder, err = tryLock(path, unix.O_CREAT, lives); err == nil || holder == lives || err != unix.EAGAIN || time.Now().After(end) {
			return fd, err
		}
	}
}

// tryLock locks the first n bytes of a file. If another process holds a lock, the error is EAGAIN, and holder is the length of that
// lock, or 0 if it has just been released. A lock file is removed when it is unlocked, so tryLock checks that the file it has locked
// is still the one at path.
func tryLock(path string, flags int, n int64) (fd int, holder int64, err error) {
	if fd, err = unix.Open(path, flags|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600); err != nil {
		return -1, 0, err
	}
	if err = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: n}); err == nil {
		var held, there unix.Stat_t
		if unix.Fstat(fd, &held) == nil && unix.Lstat(path, &there) == nil && held.Ino == there.Ino && held.Dev == there.Dev {
			return fd, n, nil
		}
		err = unix.EAGAIN
	} else if err == unix.EAGAIN {
		other := unix.Flock_t{Type: unix.F_WRLCK, Len: n}
		if unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &other) == nil && other.Type != unix.F_UNLCK {
			holder = other.Len
		}
	}
	_ = unix.Close(fd)
	return -1, holder, err
}

func unlock(path string, fd int) {
	_ = unix.Unlink(path)
	_ = unix.Close(fd)
}

// sweep removes what processes that died have left: names whose lock is free. It leaves everything else alone.
func (o *Options) sweep() {
	all, err := os.ReadDir(o.dir())
	if err != nil {
		return
	}
	for _, entry := range all {
		name, ok := strings.CutSuffix(entry.Name(), lockSuffix)
		if !ok || checkName(name) != nil || !entry.Type().IsRegular() {
			continue
		}
		path := filepath.Join(o.dir(), name)
		if fd, _, err := tryLock(path+lockSuffix, 0, looks); err == nil {
			_ = unix.Unlink(path)
			unlock(path+lockSuffix, fd)
		}
	}
}
