package sm

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"golang.org/x/sys/unix"
)

// A listener represents a name on which this process listens. It has a socket in the socket
// directory and, next to the socket, a lock file that the process keeps locked while it listens.
//
// If the lock file of a name is not locked, the files of that name are stale and may be removed.
// These are a lock file that contains lockMark, and a socket next to it on which no process is
// listening. In the default directory, which only this plugin uses, the same applies to a socket
// without a lock file, because programs that clean /tmp remove old regular files but not sockets.
// Any other file with such a name belongs to another program and is not modified.
type listener struct {
	path string
	fd   int    // the socket
	lock int    // the lock file
	node uint64 // inode of the socket; 0 before it is bound
}

// backlog is the maximum number of connections waiting to be accepted. The system may impose a
// lower limit.
const backlog = 4096

// socketDir returns the directory that contains the sockets of listening processes.
func (o *Options) socketDir() string {
	switch run := os.Getenv("XDG_RUNTIME_DIR"); {
	case o.Dir != "":
		return o.Dir
	case filepath.IsAbs(run):
		return filepath.Join(run, "quicksilver")
	}
	return fmt.Sprintf("/tmp/quicksilver-%d", os.Geteuid())
}

// socketPath returns the path of the socket for name.
func (o *Options) socketPath(name string) (string, error) {
	p := filepath.Join(o.socketDir(), name)
	if len(p) > 107 {
		return "", codes.WithText(codes.ErrInvalid, fmt.Sprintf("socket path %s has %d bytes, the limit is 107", p, len(p)))
	}
	return p, nil
}

// makeDir creates the socket directory if necessary and, unless AnyUser is set, checks that no
// other user has access to it.
func (o *Options) makeDir() error {
	dir := o.socketDir()
	if err := o.validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return codes.WithText(codes.ErrIO, "create the socket directory "+dir+": "+err.Error())
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return codes.WithText(codes.ErrIO, "create the socket directory "+dir+": "+err.Error())
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return codes.WithText(codes.ErrIO, "stat the socket directory "+dir+": "+err.Error())
	}
	bad := ""
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		bad = "is not a directory"
	case o.AnyUser:
	case int(st.Uid) != os.Geteuid():
		bad = fmt.Sprintf("is owned by user %d, this process runs as user %d", st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		bad = fmt.Sprintf("has mode %#o, want 0700", st.Mode&0o777)
	}
	if bad != "" {
		return codes.WithText(codes.ErrPermission, "the socket directory "+dir+" "+bad)
	}
	return nil
}

// dirID returns a string that identifies the socket directory, or "" if the directory does not
// exist. Processes with the same ID can connect to each other.
func (o *Options) dirID() string {
	var st unix.Stat_t
	if unix.Stat(o.socketDir(), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%x:%x", st.Dev, st.Ino)
}

// reachID returns an ID that is shared by the processes that can use sm with each other: those on
// the same machine that have the same socket directory and namespaces. Memory could be shared
// across some namespaces, but namespaces are meant to isolate processes.
func (o *Options) reachID() (place [16]byte, err error) {
	if err := o.makeDir(); err != nil {
		return place, err
	}
	all := o.dirID()
	for _, file := range []string{"net", "pid", "user"} {
		id, err := os.Readlink("/proc/self/ns/" + file)
		if err != nil {
			return place, codes.WithText(codes.ErrIO, "read the machine ID: "+err.Error())
		}
		all += " " + id
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return place, codes.WithText(codes.ErrIO, "read the machine ID: "+err.Error())
	}
	sum := sha256.Sum256(append(boot, all...))
	return [16]byte(sum[:]), nil
}

// listen starts listening on name and returns the name used, in which a trailing * is replaced with
// a unique string.
func (o *Options) listen(name string) (*listener, string, error) {
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
	path, err := o.socketPath(name)
	if err != nil {
		return nil, "", err
	}
	o.removeStale() // only listeners leave files behind, so remove stale files when starting to listen
	p := &listener{path: path, fd: -1}
	if p.lock, err = lockFile(path + lockSuffix); err != nil {
		if err == unix.EAGAIN {
			text := "another process listens on sm://" + name
			if _, err := os.Lstat(path); err != nil {
				text += ", though its socket " + path + " was removed: end that process, or use another name"
			}
			return nil, "", codes.WithText(codes.ErrAddrInUse, text)
		}
		return nil, "", codes.WithText(codes.ErrIO, "lock "+path+lockSuffix+": "+err.Error())
	}
	marked, err := isMarked(p.lock)
	if err != nil { // the file belongs to another program
		_ = unix.Close(p.lock)
		return nil, "", codes.WithText(codes.ErrAddrInUse, path+lockSuffix+" is in the way of sm://"+name+": "+err.Error())
	}
	if why := inTheWay(path, marked || o.ownsDir()); why != "" {
		if marked {
			_ = unix.Close(p.lock)
		} else { // lockFile has just created it
			unlockFile(path+lockSuffix, p.lock)
		}
		return nil, "", codes.WithText(codes.ErrAddrInUse, path+" is in the way of sm://"+name+": "+why)
	}
	if err := p.bind(o.AnyUser); err != nil {
		p.close()
		return nil, "", codes.WithText(codes.ErrIO, "listen on "+path+": "+err.Error())
	}
	return p, name, nil
}

// ownsDir reports whether the socket directory is used only by this plugin, so that all sockets in
// it belong to this plugin.
func (o *Options) ownsDir() bool { return o.Dir == "" }

// inTheWay returns the reason why the file at path cannot be replaced by a socket, or "" if the
// file can be replaced or does not exist. The caller must have locked the corresponding lock file.
// ours reports whether a socket at path belongs to this plugin.
func inTheWay(path string, ours bool) string {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case err == unix.ENOENT:
		return ""
	case err != nil:
		return err.Error()
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return "not a socket; remove it, or use another name"
	case !ours:
		return "socket of another program; remove it, or use another name"
	case !isDeserted(path):
		return "another program listens there; use another name"
	}
	return ""
}

// isDeserted reports whether no process is listening on the socket at path.
func isDeserted(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == unix.ECONNREFUSED
}

// bind creates the socket and listens on it. It writes lockMark to the lock file before it creates
// the socket, so that a crash between the two steps does not leave a socket that appears to belong
// to another program.
func (p *listener) bind(anyUser bool) (err error) {
	if err := writeLockMark(p.lock); err != nil {
		return err
	}
	_ = unix.Unlink(p.path) // the socket of a dead process, as checked by inTheWay
	if p.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		p.fd = -1
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrUnix{Name: p.path}); err != nil {
		return err
	}
	p.node = inodeOf(p.path)
	mode := uint32(0o600) // bind(2) applied the umask; no process can connect before Listen
	if anyUser {
		mode = 0o666
	}
	if err := unix.Chmod(p.path, mode); err != nil {
		return err
	}
	return unix.Listen(p.fd, backlog)
}

// close closes the socket and removes its files.
func (p *listener) close() {
	if p.node != 0 && inodeOf(p.path) == p.node { // remove the socket only if the file was not replaced
		_ = unix.Unlink(p.path)
	}
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
	}
	unlockFile(p.path+lockSuffix, p.lock)
}

// inodeOf returns the inode number of the file at path, or 0 on error.
func inodeOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
