package bench

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

// FloorUnix measures what a program would do without any of this: two processes that echo over a unix socket, read and
// written through package net, with the pauses and the busy goroutines of the measurement.
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
	for time.Since(start) < p.Time || len(lat) == 0 {
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
	rate := float64(len(lat)) / time.Since(start).Seconds()
	if !isPattern(in) {
		return r, errors.New("floor: other bytes came back than were sent")
	}
	slices.Sort(lat)
	return Result{Peer: "floor-unix", P50: Percentile(lat, 50), P99: Percentile(lat, 99), Rate: map[string]float64{"1": rate}}, nil
}

// EchoUnix is the other end of FloorUnix: it echoes what one connection sends.
func EchoUnix(args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("want a size and a number of busy goroutines")
	}
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	busy, err := strconv.Atoi(args[1])
	if err != nil {
		return err
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
	fmt.Fprintln(out, self.Ready+"unix://"+path)
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
	Burden(busy)
	for b := make([]byte, size); ; {
		if _, err := io.ReadFull(nc, b); err != nil {
			return nil // the connection has ended, and so has the measurement
		}
		if _, err := nc.Write(b); err != nil {
			return err
		}
	}
}
