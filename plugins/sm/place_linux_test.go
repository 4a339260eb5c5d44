package sm

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestNamesTakenAtOnce checks processes that take names at once. The first removes the files of
// exited owners. It may look at a name that another is about to take: that one gets it.
func TestNamesTakenAtOnce(t *testing.T) {
	t.Parallel()
	o := &Options{Dir: filepath.Join(t.TempDir(), "names")}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range long.Or(15, 50) {
				p, _, err := o.listen("*")
				if err != nil {
					t.Error(err)
					return
				}
				p.close()
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestNameOfExitedProcess checks that a name belongs to one process until that gives it back or exits;
// the next gets it though others are removing the files of the former.
func TestNameOfExitedProcess(t *testing.T) {
	o := &Options{Dir: filepath.Join(t.TempDir(), "names")}
	p, _, err := o.listen("here")
	require.NoError(t, err)
	defer p.close()
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					o.removeStale()
				}
			}
		})
	}
	for range 10 {
		leaveFiles(t, o, "dead")
		p, _, err := o.listen("dead")
		if err != nil {
			t.Error(err)
			break
		}
		_, _, err = o.listen("here")
		assert.ErrorIs(t, err, na.ErrAddrInUse)
		p.close()
	}
	close(stop)
	all.Wait()
}

// leaveFiles leaves the files of a process that listened at a name and was killed.
func leaveFiles(t *testing.T, o *Options, name string) {
	t.Helper()
	p, _, err := o.listen(name)
	require.NoError(t, err)
	require.NoError(t, unix.Close(p.fd))
	require.NoError(t, unix.Close(p.lock))
}

// TestLockFileCleanedAway checks names whose lock files are removed: cleaners of /tmp remove lock
// files and leave sockets. In the default directory a name is free all the same when its process
// has exited, and files of names without an owner are removed; a process that is alive keeps its
// socket. In a directory of the program's that holds for the names only that no other user can have
// chosen.
func TestLockFileCleanedAway(t *testing.T) {
	for _, own := range []bool{true, false} {
		t.Run(map[bool]string{true: "default directory", false: "Options.Dir"}[own], func(t *testing.T) {
			root, err := os.MkdirTemp("", "sm") // short: it is part of the address of a socket
			require.NoError(t, err)
			defer func() { require.NoError(t, os.RemoveAll(root)) }()
			o := &Options{}
			if t.Setenv("XDG_RUNTIME_DIR", root); !own {
				o.Dir = filepath.Join(root, "given")
			}
			in := func(name string) string { return filepath.Join(o.socketDir(), name) }
			clean := func(name string) { require.NoError(t, os.Remove(in(name+lockSuffix))) }
			alive, _, err := o.listen("alive")
			require.NoError(t, err)
			living, living2, err := o.listen("beside-*")
			require.NoError(t, err)
			clean("alive")
			clean(living2)
			beside := "beside-1-0123456789ab"
			var killed []*listener
			for _, name := range []string{"two", "three", beside} {
				p, _, err := o.listen(name)
				require.NoError(t, err)
				killed = append(killed, p)
			}
			for _, p := range killed {
				require.NoError(t, unix.Close(p.fd))
				require.NoError(t, unix.Close(p.lock))
				require.NoError(t, os.Remove(p.path+lockSuffix))
			}

			two, _, err := o.listen("two")
			require.NoFileExists(t, in(beside))
			require.NoFileExists(t, in(beside+lockSuffix))
			require.FileExists(t, in("alive"))
			require.FileExists(t, in(living2))
			require.NoFileExists(t, in("alive"+lockSuffix))
			if own {
				require.NoError(t, err)
				two.close()
				require.NoFileExists(t, in("three"))
				_, _, err = o.listen("alive")
				require.ErrorContains(t, err, "another program listens there")
			} else {
				require.ErrorContains(t, err, "socket of another program")
				require.FileExists(t, in("three"))
			}
			alive.close()
			living.close()
		})
	}
}

// TestFilesOfOthers checks that a directory of names may hold files of other users, with any names:
// none is changed by processes that listen, end and are killed there. A name that is taken by one
// of them is an error that names it.
func TestFilesOfOthers(t *testing.T) {
	for _, anyUser := range []bool{false, true} {
		o := &Options{Dir: t.TempDir(), AnyUser: anyUser}
		mode := os.FileMode(0o700)
		if anyUser {
			mode = 0o777 | os.ModeSticky
		}
		require.NoError(t, os.Chmod(o.Dir, mode))
		in := func(name string) string { return filepath.Join(o.Dir, name) }
		var mine []string
		for _, name := range []string{
			"poetry", "poetry.lock", "Gemfile.lock", "server.lock", "empty", "notes" + lockSuffix, "alone" + lockSuffix, "alone",
		} {
			require.NoError(t, os.WriteFile(in(name), []byte("precious: "+name), 0o600))
			mine = append(mine, name)
		}
		require.NoError(t, os.Symlink(in("poetry"), in("link")))
		require.NoError(t, os.Symlink(in("nothing"), in("dangling")))
		require.NoError(t, os.Mkdir(in("folder"), 0o700))
		dead, err := net.Listen("unix", in("dead-socket"))
		require.NoError(t, err)
		dead.(*net.UnixListener).SetUnlinkOnClose(false)
		require.NoError(t, dead.Close())
		alive, err := net.Listen("unix", in("live-socket"))
		require.NoError(t, err)
		defer func() { _ = alive.Close() }()
		list := func() (names []string) {
			all, err := os.ReadDir(o.Dir)
			require.NoError(t, err)
			for _, e := range all {
				names = append(names, e.Name())
			}
			return names
		}
		before := list()

		for _, name := range []string{"poetry", "link", "dangling", "folder", "dead-socket", "live-socket", "notes", "alone", "empty"} {
			_, _, err := o.listen(name)
			require.ErrorIs(t, err, na.ErrAddrInUse, name)
			require.ErrorContains(t, err, in(name))
			require.Equal(t, before, list())
		}
		for range 2 { // files left by a kill are removed, or taken again
			leaveFiles(t, o, "Gemfile")
			require.NoError(t, os.Remove(in("Gemfile"))) // the lock file only
			leaveFiles(t, o, "server")
			p, _, err := o.listen("server")
			require.NoError(t, err)
			require.ElementsMatch(t, append([]string{"server", "server" + lockSuffix}, before...), list())
			_, _, err = o.listen("server")
			require.ErrorIs(t, err, na.ErrAddrInUse)
			require.NoError(t, os.Remove(in("server")))
			_, _, err = o.listen("server")
			require.ErrorIs(t, err, na.ErrAddrInUse)
			require.ErrorContains(t, err, "was removed: end that process")
			require.NoError(t, os.WriteFile(in("server"), []byte("precious: server"), 0o600))
			p.close()
			require.FileExists(t, in("server"), "it is not the socket that was made")
			require.NoError(t, os.Remove(in("server")))
			require.Equal(t, before, list())
		}

		// A name of ours at which another process has begun to listen.
		leaveFiles(t, o, "taken")
		require.NoError(t, os.Remove(in("taken")))
		other, err := net.Listen("unixpacket", in("taken"))
		require.NoError(t, err)
		_, _, err = o.listen("taken")
		require.ErrorIs(t, err, na.ErrAddrInUse)
		o.removeStale()
		require.Contains(t, list(), "taken")
		require.NoError(t, other.Close())

		for _, name := range mine {
			b, err := os.ReadFile(in(name))
			require.NoError(t, err)
			require.Equal(t, "precious: "+name, string(b))
		}
	}
}
