package sm_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
)

func init() {
	for _, role := range []string{"target", "origin"} {
		roles["vandal "+role] = func() error {
			go writeRandomly()
			return roles[role]()
		}
	}
}

// writeRandomly writes random bytes into the memory of this process that its peers read, without end: a few at a time, then many.
func writeRandomly() {
	runtime.LockOSThread()
	for n := 1; ; n++ {
		for _, b := range ownMemory() {
			for range n {
				at := rand.IntN(len(b))
				if rand.IntN(2) == 0 {
					at %= 16 << 10 // the words and the first descriptors
				}
				b[at] = byte(rand.Uint32())
			}
		}
	}
}

// ownMemory returns the memory that this process shares and writes.
func ownMemory() (all [][]byte) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var from, to uintptr
		if _, err := fmt.Sscanf(s.Text(), "%x-%x rw-s", &from, &to); err == nil && strings.Contains(s.Text(), "memfd:quicksilver") {
			p := *(*unsafe.Pointer)(unsafe.Pointer(&from)) // memory outside of the Go runtime
			all = append(all, unsafe.Slice((*byte)(p), int(to-from)))
		}
	}
	return all
}

// TestPeerWritesAnything checks that a peer that writes anything at any time into the memory that it shares
// ends its own session at most: no other peer is affected, and nothing is left.
func TestPeerWritesAnything(t *testing.T) {
	f := newExitTest(t)
	vandals, ended := 0, 0
	violations := func() uint64 { return uint64(f.hctx.Stats().NA.Violations) }
	for end := time.Now().Add(long.Or(400*time.Millisecond, time.Minute)); vandals < 4 || time.Now().Before(end) || violations() == 0 && vandals < 100; vandals++ {
		role := []string{"target", "origin"}[vandals%2]
		p := f.start("vandal " + role)
		var l *load
		if role == "target" {
			l = newLoad(f.hctx, p.addr, 8)
		}
		enough := time.Now().Add(100 * time.Millisecond)
		f.until("it has done what it can", func() bool {
			return p.hasExited() || l != nil && l.flying == 0 || time.Now().After(enough)
		})
		if time.Now().Before(enough) {
			ended++
		}
		p.kill()
		if l != nil {
			l.stop = true
			f.until("every call to it ends", func() bool { return l.flying == 0 })
			l.close()
		}
		f.until("it is dead", p.hasExited)
		f.requireReleased(p, nil)
	}
	t.Logf("%d vandals, %d of them ended their session soon, %d violations", vandals, ended, violations())
	require.Positive(t, violations())
}

// TestNoMemory checks that memory that a process cannot have is an error at its peers that states
// it, and costs no other process anything.
func TestNoMemory(t *testing.T) {
	f := newExitTest(t)
	p := f.start("poor target")
	l := newLoad(f.hctx, p.addr, 1)
	f.until("the call ends", func() bool { return l.flying == 0 })
	require.ErrorIs(t, l.failed, hg.ErrUnreachable)
	require.ErrorContains(t, l.failed, "refused by peer: map shared memory of")
	require.Equal(t, hg.NotRun, hg.FateOf(l.failed))
	l.close()
	p.kill()
	f.requireReleased(p, nil)
}

// TestOtherUser checks that another user's process is refused, on either side, unless the option
// allows it: the check is made before anything is shared.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	f := newExitTest(t)
	require.NoError(t, os.Chmod(f.dir, 0o711))
	path := filepath.Join(f.dir, strings.TrimPrefix(f.cls.Addr().Name(), "sm://"))
	require.NoError(t, os.Chmod(path, 0o666))
	fd := asOtherUser(t, func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
		return fd
	})
	defer unix.Close(fd)
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 1000}))
	b := make([]byte, 1000)
	var n int
	f.until("it is refused", func() bool {
		n, _ = unix.Read(fd, b)
		return n > 0
	})
	require.Contains(t, string(b[:n]), "the peer runs as user 65534, this process as user 0")
}

// asOtherUser runs f on a thread of another user, which ends with it.
func asOtherUser(t *testing.T, f func() int) (fd int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		if errno != 0 {
			t.Error(errno)
			return
		}
		fd = f()
	}()
	<-done
	return fd
}

// TestDirectory checks that the write permissions of the directory of names are verified before it
// is used.
func TestDirectory(t *testing.T) {
	open := func(dir string) error {
		cls, err := na.Open("sm://a", na.Config{Plugins: []na.Plugin{sm.New(sm.Options{Dir: dir})}})
		if err == nil {
			require.NoError(t, cls.Close())
		}
		return err
	}
	dir := listener(t)
	require.NoError(t, open(filepath.Join(dir, "made")))
	st, err := os.Stat(filepath.Join(dir, "made"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), st.Mode().Perm())

	require.NoError(t, os.Symlink("made", filepath.Join(dir, "link")))
	require.ErrorIs(t, open(filepath.Join(dir, "link")), na.ErrPermission)
	require.NoError(t, os.Chmod(filepath.Join(dir, "made"), 0o770))
	err = open(filepath.Join(dir, "made"))
	require.ErrorIs(t, err, na.ErrPermission)
	require.ErrorContains(t, err, "has mode 0770, want 0700")
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chmod(filepath.Join(dir, "made"), 0o700))
		require.NoError(t, os.Chown(filepath.Join(dir, "made"), 65534, 65534))
		require.ErrorContains(t, open(filepath.Join(dir, "made")), "is owned by user 65534, this process runs as user 0")
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.ErrorIs(t, open(filepath.Join(dir, "file")), na.ErrPermission)
	require.ErrorIs(t, open("/tmp/"+strings.Repeat("x", 110)), na.ErrInvalid)
}

// TestNames checks that a name belongs to one process at a time; files of exited processes are
// removed, and nothing else is touched.
func TestNames(t *testing.T) {
	dir := listener(t)
	plugin := []na.Plugin{sm.New(sm.Options{Dir: dir})}
	open := func(addr string) (*na.Class, error) { return na.Open(addr, na.Config{Plugins: plugin}) }
	one, err := open("sm://one")
	require.NoError(t, err)
	require.Equal(t, "sm://one", one.Addr().Name())
	_, err = open("sm://one")
	require.ErrorIs(t, err, na.ErrAddrInUse)
	other, err := open("sm://front-*")
	require.NoError(t, err)
	require.Regexp(t, `^sm://front-\d+-[0-9a-f]{12}$`, other.Addr().Name())
	for _, bad := range []string{"sm://a/b", "sm://.a", "sm://a.qslock", "sm://" + strings.Repeat("x", 65), "sm://*a", "sm://ä"} {
		_, err := open(bad)
		require.ErrorIs(t, err, na.ErrInvalid, bad)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bystander"), nil, 0o600))
	again, err := open("sm://again")
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoError(t, one.Close())
	require.NoError(t, other.Close())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "bystander", left[0].Name())
}
