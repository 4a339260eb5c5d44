package main

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelFacts returns facts about kernel features and limits that affect performance and sizes.
func kernelFacts() []infoFact {
	facts := []infoFact{
		kernelRelease(),
		syscallFact("epoll_pwait2", "epoll_pwait2", hasEpollPwait2()),
		syscallFact("so_reuseport", "SO_REUSEPORT", hasReusePort()),
		sysctlFact("tcp_congestion_control", "tcp congestion control", "net/ipv4/tcp_congestion_control", ""),
		sysctlFact("rmem_max", "socket receive buffer, at most", "net/core/rmem_max", "bytes"),
		sysctlFact("wmem_max", "socket send buffer, at most", "net/core/wmem_max", "bytes"),
		sysctlFact("tcp_rmem", "tcp receive buffer: least, first, most", "net/ipv4/tcp_rmem", "bytes"),
		sysctlFact("tcp_wmem", "tcp send buffer: least, first, most", "net/ipv4/tcp_wmem", "bytes"),
		sysctlFact("somaxconn", "connections that wait for an accept", "net/core/somaxconn", ""),
	}
	return append(facts, rlimitFact("nofile", "descriptors of a process (NOFILE)", unix.RLIMIT_NOFILE, ""),
		rlimitFact("memlock", "locked memory of a process (MEMLOCK)", unix.RLIMIT_MEMLOCK, "bytes"))
}

func kernelRelease() infoFact {
	f := infoFact{key: "kernel", label: "kernel"}
	var u unix.Utsname
	if f.err = unix.Uname(&u); f.err == nil {
		f.value = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return f
}

// syscallFact returns a fact that states whether the kernel supports a feature. The feature is
// supported if err is nil.
func syscallFact(key, label string, err error) infoFact {
	switch err {
	case nil:
		return infoFact{key: key, label: label, value: true}
	case unix.ENOSYS, unix.ENOPROTOOPT:
		return infoFact{key: key, label: label, value: false}
	}
	return infoFact{key: key, label: label, err: err}
}

// hasEpollPwait2 returns nil if the kernel supports epoll_pwait2. It calls epoll_pwait2 with an
// invalid descriptor, for which a kernel that supports the call returns EBADF.
func hasEpollPwait2() error {
	_, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, ^uintptr(0), 0, 0, 0, 0, 0)
	if errno == unix.ENOSYS {
		return errno
	}
	return nil
}

func hasReusePort() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
}

// sysctlFact returns a fact with the value of a kernel setting, which is a number or text.
func sysctlFact(key, label, path, unit string) infoFact {
	f := infoFact{key: key, label: label, unit: unit}
	b, err := os.ReadFile("/proc/sys/" + path)
	if err != nil {
		f.err = err
		return f
	}
	text := strings.Join(strings.Fields(string(b)), " ")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		f.value = n
	} else {
		f.value = text
	}
	return f
}

func rlimitFact(key, label string, which int, unit string) infoFact {
	f := infoFact{key: key, label: label, unit: unit}
	var r unix.Rlimit
	if f.err = unix.Getrlimit(which, &r); f.err != nil {
		return f
	}
	if f.value = r.Cur; r.Cur == unix.RLIM_INFINITY {
		f.value, f.unit = "unlimited", ""
	}
	return f
}
