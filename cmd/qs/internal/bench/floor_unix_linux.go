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

// FloorUnix measures the latency of an echo that does not use the library. Two processes exchange
// data over a Unix socket through package net. Pauses between echoes are as in the other
// measurements, and the echo process has the given number of busy goroutines.
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

// EchoUnix runs the echo process of FloorUnix. It accepts one connection and returns all data to
// the sender.
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
			return nil // the measurement is complete and the connection has been closed
		}
		if _, err := nc.Write(b); err != nil {
			return err
		}
	}
}
