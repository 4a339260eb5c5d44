//go:build !linux

package main

import (
	"errors"
	"io"
	"time"
)

var errNoFloor = errors.New("-floor is measured on Linux only")

func (p *perf) floor(time.Duration) (result, error) { return result{}, errNoFloor }

func (p *perf) floorUnix(int) (result, error) { return result{}, errNoFloor }

func runFloorUnix([]string, io.Writer) error { return errNoFloor }

func runFloor([]string, io.Writer) error { return errNoFloor }
