//go:build !linux

package bench

import (
	"errors"
	"io"
	"time"
)

var errNoFloor = errors.New("--floor is measured on Linux only")

// Floor returns an error, because it is available only on Linux.
func (p *Perf) Floor(time.Duration) (Result, error) { return Result{}, errNoFloor }

// FloorUnix returns an error, because it is available only on Linux.
func (p *Perf) FloorUnix(int) (Result, error) { return Result{}, errNoFloor }

// EchoUnix returns an error, because FloorUnix is available only on Linux.
func EchoUnix([]string, io.Writer) error { return errNoFloor }

// EchoTCP returns an error, because Floor is available only on Linux.
func EchoTCP([]string, io.Writer) error { return errNoFloor }
