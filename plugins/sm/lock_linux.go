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

// A listener locks the first byte of its lock file for as long as it lives (ownerLock). It uses a
// lock of the open file description: a lock of the process would be released when any descriptor of
// the file is closed, such as that of removeStale of another node in the same process. A process
// that only checks whether the owner is alive locks two bytes for a moment (probeLock). So the
// length of a conflicting lock shows which of the two it is.
const (
	ownerLock = 1
	probeLock = 2
)

// maxProbeTime is how long lockFile waits for a probeLock. A process that is stopped may hold its
// lock for longer.
const maxProbeTime = 2 * time.Second

// lockFile creates the lock file if need be, and locks it for a listener. The error is EAGAIN if
// another one holds it.
func lockFile(path string) (fd int, err error) {
	for end := time.Now().Add(maxProbeTime); ; time.Sleep(100 * time.Microsecond) {
		var holder int64
		if fd, holder, err = tryLock(path, unix.O_CREAT, ownerLock); err == nil || holder == ownerLock || err != unix.EAGAIN || time.Now().After(end) {
			return fd, err
		}
	}
}

// tryLock locks the first n bytes of a file. If another process holds a lock, the error is EAGAIN,
// and holder is the length of that lock, or 0 if it has just been released. A lock file is removed
// when it is unlocked, so tryLock checks that the file it has locked is still the one at path.
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

// lockMark is the content of the lock file of a listener before its socket is created.
const lockMark = "quicksilver sm\n"

// isMarked reports whether a lock file, which the caller has locked, has had a listener. It returns
// an error if the file is not a lock file of this plugin.
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

// removeStale removes the files that dead processes have left: lock files with lockMark that are
// not locked, with their sockets if no process listens there; and sockets without a lock file whose
// names show that they are of this plugin. It touches no other files.
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

// besideName matches the names at which OpenBeside listens. Other programs do not use such names.
var besideName = regexp.MustCompile(`^beside-\d+-[0-9a-f]{12}$`)

// sweepName removes a stale lock file and its socket.
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

// sweepSocket removes a socket of this plugin that has no lock file, unless a process listens
// there. It holds the lock file in the meantime, so that no process takes the name.
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
