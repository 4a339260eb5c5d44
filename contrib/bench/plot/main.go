// Command plot draws the plots of docs/BENCHMARKS.md and the README, and writes their tables, from
// the output of "qs perf --json" and of other programs that print the same.
//
//	docs/bench/*.json ─► medians ─┬─► docs/img/bench-*.svg
//	     ▲                        └─► tables in README.md and docs/BENCHMARKS.md
//	     └─ -measure runs the commands in a file again
//
//	go run .                                             draws from the figures in docs/bench
//	go run . -measure calls -machine "2 cores, …" -commit $(git rev-parse --short HEAD)
//
// A file in docs/bench contains commands and, for each round, their output. The commands qs and, for
// other systems, peers (contrib/bench/peers) must be in PATH. Plot is a separate module, so that the
// library does not depend on a plotting library.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

func main() {
	docs := flag.String("docs", "../../../docs", "the `folder` docs of the repository")
	name := flag.String("measure", "", "run the commands in docs/bench/`NAME`.json first and replace their output")
	var m measurement
	flag.IntVar(&m.rounds, "rounds", 7, "with -measure: number of times to run each command")
	flag.BoolVar(&m.keep, "keep", false, "with -measure: keep the existing rounds, which must be of the same commit")
	flag.StringVar(&m.commit, "commit", "unknown", "with -measure: the measured `commit`")
	flag.StringVar(&m.machine, "machine", "", "with -measure: `description` of the machine (default: the one in the file)")
	flag.StringVar(&m.date, "date", time.Now().Format(time.DateOnly), "with -measure: the `day`")
	flag.Parse()
	if err := do(*docs, *name, m); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// A measurement describes how -measure runs the commands in a file.
type measurement struct {
	rounds  int
	keep    bool // keep the existing rounds and add to them
	commit  string
	machine string // if empty, the description in the file is kept
	date    string
}

// do runs the commands in the named file, unless name is empty, and then writes all plots and
// tables.
func do(docs, name string, m measurement) error {
	if name != "" {
		at := filepath.Join(docs, "bench", name+".json")
		f, err := readCommands(at)
		if err != nil {
			return err
		}
		if err := f.measure(m.rounds, m.keep); err != nil {
			return err
		}
		f.Commit, f.Date = m.commit, m.date
		if m.machine != "" {
			f.Machine = m.machine
		}
		if err := f.write(at); err != nil {
			return err
		}
	}
	made, err := page(docs)
	if err != nil {
		return err
	}
	for file, b := range made {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, b, 0o666)); err != nil {
			return err
		}
	}
	return nil
}
