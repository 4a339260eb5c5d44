//go:build !linux

package bench

import (
	"errors"
	"io"
	"time"
)

var errNoFloor = errors.New("--floor is measured on Linux only")

// Floor is measured on Linux only.
func (p *Perf) Floor(time.Duration) (Result, error) { return Result{}, errNoFloor }

// FloorUnix is measured on Linux only.
func (p *Perf) FloorUnix(int) (Result, error) { return Result{}, errNoFloor }

// EchoUnix is the other end.
func EchoUnix([]string, io.Writer) error { return errNoFloor }

// EchoTCP is the other end.
func EchoTCP([]string, io.Writer) error { return errNoFloor }
