package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/self"
)

// floorUnix measures what a program would do without any of this: two processes that echo over a unix socket, read and
// written through package net, with the pauses and the busy goroutines of the measurement.
func (p *perf) floorUnix(busy int) (r result, err error) {
	c, err := self.Start(ready, "floor-unix", strconv.Itoa(p.size), strconv.Itoa(busy))
	if err != nil {
		return r, err
	}
	defer c.Stop()
	nc, err := net.Dial("unix", strings.TrimPrefix(c.Addr, "unix://"))
	if err != nil {
		return r, err
	}
	defer nc.Close()
	out, in := pattern(p.size), make([]byte, p.size)
	lat := make([]time.Duration, 0, 1<<18)
	start := time.Now()
	for time.Since(start) < p.time || len(lat) == 0 {
		if p.pause > 0 {
			time.Sleep(p.pause)
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
	rate := float64(len(lat)) / time.Since(start).Seconds()
	if !isPattern(in) {
		return r, errors.New("floor: other bytes came back than were sent")
	}
	slices.Sort(lat)
	return result{Peer: "floor-unix", P50: percentile(lat, 50), P99: percentile(lat, 99), Rate: map[string]float64{"1": rate}}, nil
}

// runFloorUnix is the other end: it echoes what one connection sends.
func runFloorUnix(args []string, out io.Writer) error {
	if len(args) != 2 {
		return usageError{"want a size and a number of busy goroutines"}
	}
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return usageError{err.Error()}
	}
	n := network{}
	if n.busy, err = strconv.Atoi(args[1]); err != nil {
		return usageError{err.Error()}
	}
	dir, err := os.MkdirTemp("", "qs")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "floor")
	l, err := net.Listen("unix", path)
	if err != nil {
		_ = os.RemoveAll(dir)
		return err
	}
	fmt.Fprintln(out, ready+"unix://"+path)
	go func() { // who started us is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = os.RemoveAll(dir)
		os.Exit(0)
	}()
	nc, err := l.Accept()
	_ = os.RemoveAll(dir)
	if err != nil {
		return err
	}
	n.burden()
	for b := make([]byte, size); ; {
		if _, err := io.ReadFull(nc, b); err != nil {
			return nil // the connection has ended, and so has the measurement
		}
		if _, err := nc.Write(b); err != nil {
			return err
		}
	}
}
