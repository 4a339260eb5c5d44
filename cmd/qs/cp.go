package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

const cpUsage = `cp [flags] SRC ADDR/PATH
       qs cp [flags] ADDR/PATH DST

Copies a file, or a directory with all in it, to or from a running qs serve -root DIR.
ADDR/PATH is tcp://HOST:PORT/PATH: the first / after the port begins the path, which is below DIR.

A / at the end of the destination means: into this directory. A file also goes into a directory that is there.
A directory without that / becomes the destination itself, so that the same command can be run again.
Files that are there with the same size, time and mode are not copied; -anew copies all.
Mode and time of files are kept. Links and devices are left out.

The data goes to NAME.qs-part, which becomes NAME when it is complete and verified. When a transfer is broken
off, by Ctrl-C, a crash or the network, the same command goes on from there: what is in the part is read again
and compared with NAME.qs-part.journal. So is the source. If it has changed meanwhile the transfer begins anew.

Checksums are compared after each piece, end to end: CRC-32C, which finds damage, not an attacker; -sha256
compares the SHA-256 of each whole file, too, and is slower. Without -sync the data may still be in memory,
not on the disk, when cp ends.
`

// A copyResult is what -json prints.
type copyResult struct {
	Bytes    int64   `json:"bytes"` // moved by this run
	Files    int     `json:"files"`
	Same     int     `json:"files_unchanged"`
	Skipped  int     `json:"skipped"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"MiB_per_s"`
	Resumed  int64   `json:"resumed_from"`       // bytes of files that an earlier run had begun
	Checksum string  `json:"checksum,omitempty"` // of the file, if it was one
}

var errInterrupted = errors.New("interrupted")

func runCp(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(cpUsage, flag.ContinueOnError)
	var n network
	var opts copyOptions
	n.peerFlags(fs)
	timeout := fs.Duration("timeout", time.Minute, "`time` to wait for the answer to one request")
	fs.Int64Var(&opts.piece, "piece", 4<<20, "`bytes` that are asked for and verified at a time")
	fs.IntVar(&opts.window, "window", 8, "`pieces` under way at a time")
	fs.BoolVar(&opts.sha, "sha256", false, "compare SHA-256 checksums, too")
	fs.BoolVar(&opts.anew, "anew", false, "copy all, and from the beginning, whatever is there")
	fs.BoolVar(&opts.sync, "sync", false, "wait until each file is on the disk before it gets its name")
	asJSON := fs.Bool("json", false, "print one JSON object at the end")
	if err := parse(fs, args, 2, 2); err != nil {
		return err
	}
	switch {
	case opts.piece < 4<<10 || opts.piece > maxPiece:
		return usageError{fmt.Sprintf("-piece is %d, want %d to %d bytes", opts.piece, 4<<10, maxPiece)}
	case opts.window < 1 || opts.window > maxQueued:
		return usageError{fmt.Sprintf("-window is %d, want 1 to %d", opts.window, maxQueued)}
	case *timeout <= 0:
		return usageError{"-timeout is not positive"}
	}
	from, err := parsePlace(fs.Arg(0))
	if err != nil {
		return err
	}
	to, err := parsePlace(fs.Arg(1))
	if err != nil {
		return err
	}
	if (from.addr == "") == (to.addr == "") {
		return usageError{"one of SRC and DST is tcp://HOST:PORT/PATH, the other a path of this machine"}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		select {
		case <-signals:
			signal.Stop(signals) // a second one ends the program
			cancel(errInterrupted)
			interrupted()
		case <-ctx.Done():
		}
	}()
	r, err := copyPlace(ctx, &n, *timeout, opts, from, to, *asJSON)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	r.print(out)
	return nil
}

// copyPlace connects, looks at what there is to do, and does it.
func copyPlace(ctx context.Context, n *network, timeout time.Duration, opts copyOptions, from, to place, quiet bool) (*copyResult, error) {
	begun := time.Now()
	upload := to.addr != ""
	here, there := to, from
	if upload {
		here, there = from, to
	}
	folder, name, err := here.resolve(upload)
	if err != nil {
		return nil, err
	}
	local, err := openDisk(folder)
	if err != nil {
		return nil, err
	}
	defer local.close()
	client, err := dial(n, there.addr, timeout, fileRPCs)
	if err != nil {
		return nil, err
	}
	defer client.close()

	var p *plan
	var dst store = local
	if upload {
		dst = remote{client}
		p, err = makePlan(ctx, local, dst, name, to.path, to.into)
	} else {
		p, err = makePlan(ctx, remote{client}, dst, from.path, name, to.into)
	}
	if err != nil {
		return nil, fmt.Errorf("copy %v: %w", from, err)
	}
	show := newProgress(os.Stderr, p.bytes, quiet)
	for _, s := range p.skipped {
		show.note(s + " is neither a file nor a directory: left out")
	}
	c := &copier{c: client, local: local, upload: upload, opts: opts, show: show}
	err = c.run(ctx, p, dst)
	show.close()
	if err != nil {
		return nil, fmt.Errorf("copy %w%s", err, c.advice(err))
	}
	r := &copyResult{
		Bytes: c.counts.bytes, Files: c.counts.files, Same: c.counts.same, Skipped: len(p.skipped), Resumed: c.counts.resumed,
		Seconds: time.Since(begun).Seconds(),
	}
	r.Rate = float64(r.Bytes) / (1 << 20) / r.Seconds
	if len(p.files) == 1 {
		r.Checksum = c.counts.sum
	}
	return r, nil
}

// advice says what the user can do, when it is not in the error.
func (c *copier) advice(err error) string {
	switch codeOf(err) {
	case na.ErrPermission, na.ErrInvalid, na.ErrExists, na.ErrNoEntry:
		return "" // running it again would not help
	}
	return "; what has arrived is kept: the same command resumes"
}

func (r *copyResult) print(out io.Writer) {
	var also []string
	if r.Resumed > 0 {
		also = append(also, bytesText(r.Resumed)+" were there from a run before")
	}
	if r.Same > 0 {
		also = append(also, fmt.Sprintf("unchanged files: %d", r.Same))
	}
	if r.Skipped > 0 {
		also = append(also, fmt.Sprintf("left out: %d", r.Skipped))
	}
	if r.Checksum != "" {
		also = append(also, r.Checksum)
	}
	text := ""
	if len(also) > 0 {
		text = "; " + strings.Join(also, "; ")
	}
	fmt.Fprintf(out, "%d files, %s in %.2f s, %.0f MiB/s, verified%s\n", r.Files, bytesText(r.Bytes), r.Seconds, r.Rate, text)
}
