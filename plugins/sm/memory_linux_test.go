package sm

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// footprint returns the shared memory of this process: the bytes that are reserved, and those that
// are resident. A piece of memory that is mapped twice counts once.
func footprint(t *testing.T) (reserved, there int) {
	f, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer f.Close()
	size, rss := map[string]int{}, map[string]int{}
	inode := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		var n int
		switch {
		case len(fields) > 5 && strings.Contains(fields[5], "memfd:quicksilver"):
			inode = fields[4]
		case strings.Contains(fields[0], "-"):
			inode = ""
		case inode != "" && fields[0] == "Size:":
			_, _ = fmt.Sscan(fields[1], &n)
			size[inode] = n << 10
		case inode != "" && fields[0] == "Rss:":
			_, _ = fmt.Sscan(fields[1], &n)
			rss[inode] = max(rss[inode], n<<10)
		}
	}
	for i := range size {
		reserved += size[i]
		there += rss[i]
	}
	return reserved, there
}

// TestFootprint checks the memory of a pair of processes: 400 KiB reserved before the first bulk
// transfer, of which 32 KiB are resident after one call.
func TestFootprint(t *testing.T) {
	dir, err := os.MkdirTemp("", "sm")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	cfg := hg.Config{NA: na.Config{Plugins: []na.Plugin{New(Options{Dir: dir})}}}
	var all []*hg.Context
	open := func(addr string) *hg.Class {
		cls, err := hg.Open(addr, cfg)
		require.NoError(t, err)
		_, err = cls.Register("echo", func(in hg.Request) error { return in.RespondRaw(nil, nil) })
		require.NoError(t, err)
		hctx, err := cls.NewContext()
		require.NoError(t, err)
		all = append(all, hctx)
		return cls
	}
	target := open("sm://*")
	origin := open("sm://")
	h, err := all[1].Create(target.Addr(), hg.HashName("echo"))
	require.NoError(t, err)
	ended := false
	require.NoError(t, h.ForwardRaw(make([]byte, 64), func(_ *hg.Handle, err error) {
		require.NoError(t, err)
		ended = true
	}))
	drive := func(done func() bool) {
		for !done() {
			for _, hctx := range all {
				hctx.Trigger(0)
				_ = hctx.Progress(0)
			}
		}
	}
	drive(func() bool { return ended })
	reserved, there := footprint(t)
	t.Logf("%d KiB reserved, %d KiB there", reserved>>10, there>>10)
	require.Positive(t, there)
	require.LessOrEqual(t, reserved, 400<<10)
	if os.Getpagesize() == 4<<10 {
		require.LessOrEqual(t, there, 32<<10)
	}
	require.NoError(t, h.Close())
	for _, cls := range []*hg.Class{origin, target} {
		require.NoError(t, cls.Close())
	}
	drive(func() bool { return origin.NA().Closed() && target.NA().Closed() })
	reserved, _ = footprint(t)
	require.Zero(t, reserved)
}

// TestProbe checks that memory that is unmapped when it is first touched is an error of the pair,
// and does not end the process.
func TestProbe(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	geo := ring.Geometry{Envelopes: 32 + na.ExpeditedEnvelopes, Eager: 4096}
	require.NoError(t, unix.Ftruncate(fd, int64(geo.Size())))
	b, err := unix.Mmap(fd, 0, geo.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(b)) }()
	_, err = probeMemory(b, geo)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	_, err = probeMemory(b, geo)
	require.Error(t, err)
	require.ErrorIs(t, translateError(err), na.ErrNoMemory)
}

// TestMapMemory checks that memory that a peer shares must have the announced length, and keep it.
func TestMapMemory(t *testing.T) {
	memfd := func(size, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(fd, int64(size)))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return fd
	}
	_, err := mapMemory(memfd(8192, 0), 8192)
	require.ErrorContains(t, err, "shared memory has seals")
	_, err = mapMemory(memfd(8192, unix.F_SEAL_GROW), 8192)
	require.ErrorContains(t, err, "shared memory has seals")
	_, err = mapMemory(memfd(4096, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW), 8192)
	require.ErrorContains(t, err, "shared memory has 4096 bytes, want 8192")
	pipe := make([]int, 2)
	require.NoError(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	_, err = mapMemory(pipe[0], 8192)
	require.ErrorIs(t, err, na.ErrProtocol)
	require.ErrorIs(t, checkBell(pipe[1]), na.ErrProtocol, "the bell waits")
	require.NoError(t, unix.Close(pipe[1]))

	own, fd, err := makeMemory(8192)
	require.NoError(t, err)
	other, err := unix.Dup(fd)
	require.NoError(t, err)
	_, err = unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM, "no other goroutine writes it")
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.NoError(t, unix.Close(fd))
	seen, err := mapMemory(other, 8192)
	require.NoError(t, err)
	own[8191] = 7
	require.EqualValues(t, 7, seen[8191])
	unmap(&own)
	unmap(&seen)
}
