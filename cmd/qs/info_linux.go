package main

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelFacts are those that decide how fast and how large things can be.
func kernelFacts() []fact {
	facts := []fact{
		release(),
		has("epoll_pwait2", "epoll_pwait2", hasEpollPwait2()),
		has("so_reuseport", "SO_REUSEPORT", hasReusePort()),
		sysctl("tcp_congestion_control", "tcp congestion control", "net/ipv4/tcp_congestion_control", ""),
		sysctl("rmem_max", "socket receive buffer, at most", "net/core/rmem_max", "bytes"),
		sysctl("wmem_max", "socket send buffer, at most", "net/core/wmem_max", "bytes"),
		sysctl("tcp_rmem", "tcp receive buffer: least, first, most", "net/ipv4/tcp_rmem", "bytes"),
		sysctl("tcp_wmem", "tcp send buffer: least, first, most", "net/ipv4/tcp_wmem", "bytes"),
		sysctl("somaxconn", "connections that wait for an accept", "net/core/somaxconn", ""),
	}
	return append(facts, limit("nofile", "descriptors of a process (NOFILE)", unix.RLIMIT_NOFILE, ""),
		limit("memlock", "locked memory of a process (MEMLOCK)", unix.RLIMIT_MEMLOCK, "bytes"))
}

func release() fact {
	f := fact{key: "kernel", label: "kernel"}
	var u unix.Utsname
	if f.err = unix.Uname(&u); f.err == nil {
		f.value = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return f
}

// has is a fact about something that the kernel has or has not.
func has(key, label string, err error) fact {
	switch err {
	case nil:
		return fact{key: key, label: label, value: true}
	case unix.ENOSYS, unix.ENOPROTOOPT:
		return fact{key: key, label: label, value: false}
	}
	return fact{key: key, label: label, err: err}
}

// hasEpollPwait2 asks with a descriptor that is none: a kernel that knows the call says so.
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

// sysctl reads a setting: a number, or text.
func sysctl(key, label, path, unit string) fact {
	f := fact{key: key, label: label, unit: unit}
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

func limit(key, label string, which int, unit string) fact {
	f := fact{key: key, label: label, unit: unit}
	var r unix.Rlimit
	if f.err = unix.Getrlimit(which, &r); f.err != nil {
		return f
	}
	if f.value = r.Cur; r.Cur == unix.RLIM_INFINITY {
		f.value, f.unit = "unlimited", ""
	}
	return f
}
