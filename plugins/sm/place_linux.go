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

// A socketPlace is a name in the directory that this process listens at: a socket, and beside it a file that it holds locked as long as
// it lives. So a name whose lock is free belongs to nobody, and what is left of it may go: a lock file with our mark, and a socket
// beside it at which nobody listens. In the default directory, which is the library's own, such a socket may go without a lock file, too:
// cleaners of /tmp remove plain files that are old, and leave sockets. Anything else at these names is somebody else's, and stays.
type socketPlace struct {
	path string
	fd   int // of the socket
	lock int
	node uint64 // inode of the socket; 0 before it is bound
}

// backlog is how many processes may be about to connect; the system has a limit, too.
const backlog = 4096

// socketDir returns the directory of names.
func (o *Options) socketDir() string {
	switch run := os.Getenv("XDG_RUNTIME_DIR"); {
	case o.Dir != "":
		return o.Dir
	case filepath.IsAbs(run):
		return filepath.Join(run, "quicksilver")
	}
	return fmt.Sprintf("/tmp/quicksilver-%d", os.Geteuid())
}

// socketPath returns the address of the socket of a name.
func (o *Options) socketPath(name string) (string, error) {
	p := filepath.Join(o.socketDir(), name)
	if len(p) > 107 {
		return "", codes.WithText(codes.ErrInvalid, fmt.Sprintf("the path %s of a socket has %d bytes, the system allows 107", p, len(p)))
	}
	return p, nil
}

// makeDir makes the directory if need be, and checks that nobody else has a hand in it.
func (o *Options) makeDir() error {
	dir := o.socketDir()
	if err := o.validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return codes.WithText(codes.ErrIO, "make the directory of names "+dir+": "+err.Error())
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return codes.WithText(codes.ErrIO, "make the directory of names "+dir+": "+err.Error())
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return codes.WithText(codes.ErrIO, "look at the directory of names "+dir+": "+err.Error())
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
		return codes.WithText(codes.ErrPermission, "the directory of names "+dir+" "+bad)
	}
	return nil
}

// dirID identifies the directory of names: processes with the same one find each other. It is empty when there is none.
func (o *Options) dirID() string {
	var st unix.Stat_t
	if unix.Stat(o.socketDir(), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%x:%x", st.Dev, st.Ino)
}

// reachID identifies the processes that find each other: those with one directory, on one machine, without a border of namespaces between
// them. Memory could be shared over some of these borders, but who has drawn one does not want that.
func (o *Options) reachID() (place [16]byte, err error) {
	if err := o.makeDir(); err != nil {
		return place, err
	}
	all := o.dirID()
	for _, file := range []string{"net", "pid", "user"} {
		id, err := os.Readlink("/proc/self/ns/" + file)
		if err != nil {
			return place, codes.WithText(codes.ErrIO, "find out what machine this is: "+err.Error())
		}
		all += " " + id
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return place, codes.WithText(codes.ErrIO, "find out what machine this is: "+err.Error())
	}
	sum := sha256.Sum256(append(boot, all...))
	return [16]byte(sum[:]), nil
}

// listen takes a name, and returns it: one that ends in * is completed.
func (o *Options) listen(name string) (*socketPlace, string, error) {
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
	o.removeStale() // here: only who listens leaves something behind
	p := &socketPlace{path: path, fd: -1}
	if p.lock, err = lockFile(path + lockSuffix); err != nil {
		if err == unix.EAGAIN {
			text := "another process listens on sm://" + name
			if _, err := os.Lstat(path); err != nil {
				text += ", though somebody has removed its socket " + path + ": end that process, or use another name"
			}
			return nil, "", codes.WithText(codes.ErrAddrInUse, text)
		}
		return nil, "", codes.WithText(codes.ErrIO, "lock "+path+lockSuffix+": "+err.Error())
	}
	marked, err := isMarked(p.lock)
	if err != nil { // somebody else's file: it stays
		_ = unix.Close(p.lock)
		return nil, "", codes.WithText(codes.ErrAddrInUse, path+lockSuffix+" is in the way of sm://"+name+": "+err.Error())
	}
	if why := inTheWay(path, marked || o.ownsDir()); why != "" {
		if marked {
			_ = unix.Close(p.lock)
		} else { // we have just created it
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

// ownsDir reports whether the directory of names is the library's own: nobody else puts sockets there.
func (o *Options) ownsDir() bool { return o.Dir == "" }

// inTheWay says why a name cannot be taken whose lock we hold: there is something that no listener of this plugin has left. ours says that
// a socket there is one of this plugin.
func inTheWay(path string, ours bool) string {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case err == unix.ENOENT:
		return ""
	case err != nil:
		return err.Error()
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return "it is not a socket; remove it, or use another name"
	case !ours:
		return "it is a socket of another program; remove it, or use another name"
	case !isDeserted(path):
		return "another program listens there; use another name"
	}
	return ""
}

// isDeserted reports whether nobody listens at a socket.
func isDeserted(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == unix.ECONNREFUSED
}

func (p *socketPlace) bind(anyUser bool) (err error) {
	if err := writeLockMark(p.lock); err != nil { // before the socket: who dies in between leaves nothing that looks like another program's
		return err
	}
	_ = unix.Unlink(p.path) // of one who died: inTheWay has looked
	if p.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		p.fd = -1
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrUnix{Name: p.path}); err != nil {
		return err
	}
	p.node = inodeOf(p.path)
	mode := uint32(0o600) // bind has obeyed the umask; nobody can connect before Listen
	if anyUser {
		mode = 0o666
	}
	if err := unix.Chmod(p.path, mode); err != nil {
		return err
	}
	return unix.Listen(p.fd, backlog)
}

// close gives the name back.
func (p *socketPlace) close() {
	if p.node != 0 && inodeOf(p.path) == p.node { // else somebody has put something else there
		_ = unix.Unlink(p.path)
	}
	if p.fd >= 0 {
		_ = unix.Close(p.fd)
	}
	unlockFile(p.path+lockSuffix, p.lock)
}

// inodeOf identifies what is at path; 0 if nothing is.
func inodeOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
