package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// A file is one file in docs/bench. It contains commands, which are run in turn in each round, and
// their output.
type file struct {
	Machine string `json:"machine"`
	Date    string `json:"date"`
	Commit  string `json:"commit"` // of this repository
	Runs    []*run `json:"runs"`
}

// A run is one command: "qs perf --json", or a program that prints the same about another system.
type run struct {
	System  string            `json:"system"`
	Shared  bool              `json:"shared,omitempty"` // does not use a network
	Command string            `json:"command"`
	Rounds  []json.RawMessage `json:"rounds"` // output, one entry per round
}

// A result is the output of one command in one round: figures of calls and bulk transfers, or a table
// by size.
type result struct {
	P50   float64            `json:"lat_p50_us"` // microseconds, one call in flight
	Rate  map[string]float64 `json:"rate_per_s"` // by calls in flight
	Bulk  float64            `json:"bulk_mib_per_s"`
	Sizes []struct {
		Size  int64   `json:"size"` // bytes
		Value float64 `json:"value"`
	} `json:"sizes"`
	named map[string]any // all of it
}

// readCommands reads a file. Its commands need not have been run yet.
func readCommands(name string) (*file, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	f := new(file)
	if err := json.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// readFile reads a file and checks that each run has a round that can be read.
func readFile(name string) (*file, error) {
	f, err := readCommands(name)
	if err != nil {
		return nil, err
	}
	for _, r := range f.Runs {
		if _, err := r.results(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return f, nil
}

func (f *file) write(name string) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	// One line per round, so that a diff shows which runs have been measured again.
	b = bytes.ReplaceAll(b, []byte(`{"system"`), []byte("\n{\"system\""))
	b = bytes.ReplaceAll(b, []byte(`"rounds":[`), []byte("\"rounds\":[\n"))
	return os.WriteFile(name, append(b, '\n'), 0o666)
}

// results returns the output of each round. Programs that can measure several systems print a list,
// which must have one element.
func (r *run) results() ([]result, error) {
	if len(r.Rounds) == 0 {
		return nil, fmt.Errorf("%s: no rounds", r.System)
	}
	all := make([]result, len(r.Rounds))
	for i, raw := range r.Rounds {
		if raw[0] != '[' {
			raw = slices.Concat([]byte("["), raw, []byte("]"))
		}
		var one []result
		var named []map[string]any
		if err := errors.Join(json.Unmarshal(raw, &one), json.Unmarshal(raw, &named)); err != nil {
			return nil, fmt.Errorf("%s: %w", r.System, err)
		}
		if len(one) != 1 {
			return nil, fmt.Errorf("%s: %d results in one round, want 1", r.System, len(one))
		}
		all[i], all[i].named = one[0], named[0]
	}
	return all, nil
}

// A spread summarizes a figure over the rounds that report it.
type spread struct{ least, median, most float64 }

// median returns the median of a figure over the rounds that report it, and whether any round does.
func (r *run) median(figure func(result) float64) (float64, bool) {
	s, ok := r.spread(figure)
	return s.median, ok
}

// spread summarizes a figure over the rounds that report it, and reports whether any round does.
func (r *run) spread(figure func(result) float64) (spread, bool) {
	all, err := r.results()
	if err != nil {
		return spread{}, false
	}
	var v []float64
	for _, one := range all {
		if x := figure(one); x > 0 {
			v = append(v, x)
		}
	}
	if len(v) == 0 {
		return spread{}, false
	}
	slices.Sort(v)
	return spread{v[0], (v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[len(v)-1]}, true
}

func p50(r result) float64  { return r.P50 }
func bulk(r result) float64 { return r.Bulk }

func rate(inFlight int) func(result) float64 {
	return func(r result) float64 { return r.Rate[strconv.Itoa(inFlight)] }
}

// named returns a function that extracts the figure printed under name.
func named(name string) func(result) float64 {
	return func(r result) float64 {
		v, _ := r.named[name].(float64)
		return v
	}
}

// at returns the figure for one size, and 0 for a size that was not measured.
func at(size int64) func(result) float64 {
	return func(r result) float64 {
		for _, s := range r.Sizes {
			if s.Size == size {
				return s.Value
			}
		}
		return 0
	}
}

// sizes returns the sizes of the table of r.
func (r *run) sizes() (all []int64) {
	results, err := r.results()
	if err != nil {
		return nil
	}
	for _, s := range results[0].Sizes {
		all = append(all, s.Size)
	}
	return all
}
