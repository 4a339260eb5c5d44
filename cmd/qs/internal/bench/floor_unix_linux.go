package bench

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
)

// FloorUnix measures an echo without the library: two processes exchange data over a unix socket
// through package net, with the pauses and the busy goroutines of the measurement.
func (p *Perf) FloorUnix(busy int) (r Result, err error) {
	c, err := self.Start(self.Ready, "floor-unix", strconv.Itoa(p.Size), strconv.Itoa(busy))
	if err != nil {
		return r, err
	}
	defer c.Stop()
	nc, err := net.Dial("unix", strings.TrimPrefix(c.Addr, "unix://"))
	if err != nil {
		return r, err
	}
	defer nc.Close()
	out, in := Pattern(p.Size), make([]byte, p.Size)
	lat := make([]time.Duration, 0, 1<<18)
	start := time.Now()
	for p.goesOn(start.Add(p.Time)) || len(lat) == 0 {
		if p.Pause > 0 {
			time.Sleep(p.Pause)
		}
		begun := time.Now()
		if _, err := nc.Write(out); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
		if _, err := io.ReadFull(nc, in); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
		lat = append(lat, time.Since(begun))
	}
	return floorResult("floor-unix", start, lat, in)
}

// EchoUnix runs the other end of FloorUnix, which echoes the data received on one connection.
func EchoUnix(args []string, out io.Writer) error {
	size, busy, err := floorArgs(args, "a number of busy goroutines", strconv.Atoi)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "qs")
	if err != nil {
		return err
	}
	clean := func() { _ = os.RemoveAll(dir) }
	defer clean()
	l, err := net.Listen("unix", filepath.Join(dir, "floor"))
	if err != nil {
		return err
	}
	nc, err := acceptOne(l, out, clean)
	if clean(); err != nil {
		return err
	}
	Burden(busy)
	for b := make([]byte, size); ; {
		if _, err := io.ReadFull(nc, b); err != nil {
			return nil // the connection is closed, so the measurement is complete
		}
		if _, err := nc.Write(b); err != nil {
			return err
		}
	}
}
