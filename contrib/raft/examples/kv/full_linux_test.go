package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// fillDisk has every write of a server to a file fail, with EFBIG, or lets them succeed again: by the limit of the size of its files. That needs no
// file system of its own, and so no root. raft panics when it cannot store its term: see runs.
func (f *fleet) fillDisk(i int, full bool) {
	var limit syscall.Rlimit
	call := func(set, get *syscall.Rlimit) {
		_, _, errno := syscall.Syscall6(syscall.SYS_PRLIMIT64, uintptr(f.cmds[i].Process.Pid),
			syscall.RLIMIT_FSIZE,
			uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 0, 0)
		if f.isRunning(i) {
			require.Zero(f.t, errno, "prlimit: %v", errno)
		}
	}
	call(nil, &limit)
	limit.Cur = limit.Max
	if full {
		limit.Cur = 0
	}
	call(&limit, nil)
}

// isRunning reports whether a server has not ended by itself.
func (f *fleet) isRunning(i int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(f.cmds[i].Process.Pid) + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
