// Command plot draws the figures of docs/BENCHMARKS.md, and writes its tables, from what "qs perf -json" has printed.
//
//	docs/bench/*.json ─► medians ─┬─► docs/img/bench-*.svg
//	     ▲                        └─► tables in docs/BENCHMARKS.md
//	     └─ -measure runs the commands in a file anew
//
//	go run .                                        draw again, in contrib/plot
//	go run . -measure calls -commit $(git rev-parse --short HEAD)
//
// A file of docs/bench holds commands and all that they printed, round by round. The commands qs, and peers of
// contrib/peers for the other systems, must be in PATH. It is a module of its own, so that the library does not depend on a plotting library.
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
	name := flag.String("measure", "", "run the commands of docs/bench/`NAME`.json first, and replace what they printed")
	rounds := flag.Int("rounds", 5, "with -measure: how often to run each command")
	keep := flag.Bool("keep", false, "with -measure: keep the rounds that are there, of the same commit")
	commit := flag.String("commit", "unknown", "with -measure: the `commit` that is measured")
	date := flag.String("date", time.Now().Format(time.DateOnly), "with -measure: the `day`")
	flag.Parse()
	if err := do(*docs, *name, *rounds, *keep, *commit, *date); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func do(docs, name string, rounds int, keep bool, commit, date string) error {
	if name != "" {
		at := filepath.Join(docs, "bench", name+".json")
		f, err := readCommands(at)
		if err != nil {
			return err
		}
		if err := f.measure(rounds, keep); err != nil {
			return err
		}
		f.Commit, f.Date = commit, date
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
