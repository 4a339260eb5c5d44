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

// A listener locks the first byte of its lock file for as long as it lives, with a lock of the open file description: one of the process
// would go when any descriptor of the file is closed in it, such as that of a sweep of another node in the same process. A process that only checks whether the owner is alive
// locks two bytes, for a moment. So the length of a conflicting lock tells which of them holds it.
const (
	lives = 1
	looks = 2
)

// looksAtMost is how long lock waits for a process that only checks. One that is stopped may hold its lock for longer.
const looksAtMost = 2 * time.Second

// lockFile creates the lock file if need be, and locks it for a listener. The error is EAGAIN if another one holds it.
func lockFile(path string) (fd int, err error) {
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

func unlockFile(path string, fd int) {
	_ = unix.Unlink(path)
	_ = unix.Close(fd)
}

// lockMark is what the lock file of a listener holds before its socket is made.
const lockMark = "quicksilver sm\n"

// isMarked reports whether a lock file, which is locked, has had a listener. An error says that it is no lock file of ours.
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
	return false, errors.New("it is a file of another program; remove it, or use another name")
}

func writeLockMark(fd int) error {
	_, err := unix.Pwrite(fd, []byte(lockMark), 0)
	return err
}

// removeStale removes what processes that died have left: names whose lock file has our mark and is free, and the sockets beside
// them at which nobody listens; and sockets that are ours by their names and have lost their lock files. It leaves everything else alone.
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

// besideName is what the name of a class is that listens here beside another transport. Nobody else calls a socket so.
var besideName = regexp.MustCompile(`^beside-\d+-[0-9a-f]{12}$`)

// sweepName removes a name with a lock file.
func sweepName(path string) {
	fd, _, err := tryLock(path+lockSuffix, 0, looks)
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

// sweepSocket removes a socket of ours that has no lock file, unless somebody listens there. The lock file is made meanwhile, so that nobody
// takes the name.
func sweepSocket(path string) {
	fd, _, err := tryLock(path+lockSuffix, unix.O_CREAT|unix.O_EXCL, looks)
	if err != nil {
		return
	}
	if inTheWay(path, true) == "" {
		_ = unix.Unlink(path)
	}
	unlockFile(path+lockSuffix, fd)
}
