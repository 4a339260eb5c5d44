//go:build !linux

package bench

import (
	"errors"
	"io"
	"time"
)

var errNoFloor = errors.New("--floor is measured on Linux only")

// Floor returns an error, because it is supported on Linux only.
func (p *Perf) Floor(time.Duration) (Result, error) { return Result{}, errNoFloor }

// FloorUnix returns an error, because it is supported on Linux only.
func (p *Perf) FloorUnix(int) (Result, error) { return Result{}, errNoFloor }

// EchoUnix returns an error, because FloorUnix is supported on Linux only.
func EchoUnix([]string, io.Writer) error { return errNoFloor }

// EchoTCP returns an error, because Floor is supported on Linux only.
func EchoTCP([]string, io.Writer) error { return errNoFloor }
