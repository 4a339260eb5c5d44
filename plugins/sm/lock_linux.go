package sm

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ownerLock and probeLock are the numbers of bytes locked in a lock file. A listener keeps the
// first byte of its lock file locked while it exists (ownerLock). A process that checks whether a
// listener is alive briefly locks two bytes (probeLock), so the length of a conflicting lock shows
// its kind. The locks belong to open file descriptions. Locks that belong to the process would be
// released when any descriptor of the file is closed, for example by a call to removeStale for
// another class in the same process.
const (
	ownerLock = 1
	probeLock = 2
)

// maxProbeTime is how long lockFile waits for a probeLock to be released. A suspended process may
// hold its lock for longer.
const maxProbeTime = 2 * time.Second

// lockFile locks a lock file for a listener, creating it if necessary. It returns EAGAIN if another
// listener holds the lock.
func lockFile(path string) (fd int, err error) {
	for end := time.Now().Add(maxProbeTime); ; time.Sleep(100 * time.Microsecond) {
		var holder int64
		if fd, holder, err = tryLock(path, unix.O_CREAT, ownerLock); err == nil || holder == ownerLock || err != unix.EAGAIN || time.Now().After(end) {
			return fd, err
		}
	}
}

// tryLock opens the file at path and locks its first n bytes. If there is a conflicting lock,
// tryLock returns EAGAIN, and holder is the length of that lock, or 0 if the lock has just been
// released. Because a lock file is removed when it is unlocked, tryLock also returns EAGAIN if the
// file that it has locked is no longer the one at path.
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

func unlockFile(path string, fd int) {
	_ = unix.Unlink(path)
	_ = unix.Close(fd)
}

// lockMark is written to a listener's lock file before its socket is created.
const lockMark = "quicksilver sm\n"

// isMarked reports whether the lock file fd contains lockMark, that is, whether a listener has used
// it. The caller must have locked the file. isMarked returns an error if the file is not a lock
// file of this plugin.
func isMarked(fd int) (bool, error) {
	var st unix.Stat_t
	b := make([]byte, len(lockMark)+1)
	n, err := 0, unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		n, err = unix.Pread(fd, b, 0)
		if err == nil && (n == 0 || string(b[:n]) == lockMark) {
			return n > 0, nil
		}
	}
	if err != nil {
		return false, err
	}
	return false, errors.New("not a lock file of this transport; remove it, or use another name")
}

func writeLockMark(fd int) error {
	_, err := unix.Pwrite(fd, []byte(lockMark), 0)
	return err
}

// removeStale removes files that dead processes have left in the socket directory. These are
// unlocked lock files that contain lockMark, their sockets if no process is listening on them, and
// sockets without a lock file whose names show that they belong to this plugin. It does not modify
// other files.
func (o *Options) removeStale() {
	all, err := os.ReadDir(o.socketDir())
	if err != nil {
		return
	}
	for _, entry := range all {
		name, ok := strings.CutSuffix(entry.Name(), lockSuffix)
		switch path := filepath.Join(o.socketDir(), name); {
		case checkName(name) != nil:
		case ok && entry.Type().IsRegular():
			sweepName(path)
		case !ok && entry.Type() == os.ModeSocket && (o.ownsDir() || besideName.MatchString(name)):
			sweepSocket(path)
		}
	}
}

// besideName matches the unique names on which OpenBeside listens. A socket with such a name
// belongs to this plugin.
var besideName = regexp.MustCompile(`^beside-\d+-[0-9a-f]{12}$`)

// sweepName removes the socket at path and its lock file, if they are stale.
func sweepName(path string) {
	fd, _, err := tryLock(path+lockSuffix, 0, probeLock)
	if err != nil {
		return
	}
	if marked, err := isMarked(fd); err != nil || !marked || inTheWay(path, marked) != "" {
		_ = unix.Close(fd)
		return
	}
	_ = unix.Unlink(path)
	unlockFile(path+lockSuffix, fd)
}

// sweepSocket removes the socket at path, which belongs to this plugin and has no lock file, unless
// a process is listening on the socket. While it does so, it creates and locks the lock file, so
// that no other process can use the name.
func sweepSocket(path string) {
	fd, _, err := tryLock(path+lockSuffix, unix.O_CREAT|unix.O_EXCL, probeLock)
	if err != nil {
		return
	}
	if inTheWay(path, true) == "" {
		_ = unix.Unlink(path)
	}
	unlockFile(path+lockSuffix, fd)
}
