package pathcost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// callsPerRound is how many calls are counted together: few, so that there are rounds which nothing
// else on the machine disturbs.
const callsPerRound = 250

// A meter has the programs and the code that measuring needs.
type meter struct {
	module          string
	folder          string // for files
	plain, counting string // the program calls, without and with counters
	covdata         string // the tool that makes text of counters
	code            []*function
}

// newMeter builds the program in a folder, plain and with counters for all packages of its module.
// Files go to another folder.
func newMeter(program, folder string) (*meter, error) {
	m := &meter{folder: folder, plain: filepath.Join(folder, "plain"), counting: filepath.Join(folder, "counting")}
	var err error
	if m.module, err = runCommand(program, "go", "list", "-f", "{{.Module.Path}}"); err != nil {
		return nil, err
	}
	if _, err = runCommand(program, "go", "build", "-ldflags=-w", "-o", m.plain); err != nil {
		return nil, err
	}
	_, err = runCommand(program, "go", "build", "-ldflags=-w", "-cover", "-covermode=atomic", "-coverpkg="+m.module+"/...", "-o", m.counting)
	if err != nil {
		return nil, err
	}
	if m.covdata, err = runCommand(program, "go", "tool", "-n", "covdata"); err != nil {
		return nil, err
	}
	m.code, err = loadCode(program)
	return m, err
}

// measure returns the costs of a call, the minimum of some rounds, and its processor time in
// nanoseconds.
func (m *meter) measure(c cell, rounds int) (costs, float64, error) {
	args := []string{"-kind", c.kind, "-transport", c.transport, "-rounds", strconv.Itoa(rounds), "-calls", strconv.Itoa(callsPerRound)}
	counters, err := os.MkdirTemp(m.folder, "counters")
	if err != nil {
		return nil, 0, err
	}
	if _, err = runCommand(m.folder, m.counting, append(args, "-counters", counters)...); err != nil {
		return nil, 0, err
	}
	var all costs
	for round := range rounds {
		one, err := m.readRound(filepath.Join(counters, strconv.Itoa(round)))
		if err != nil {
			return nil, 0, err
		}
		if all == nil {
			all = one
		}
		all = minCosts(all, one)
	}
	rest, err := runCommand(m.folder, m.plain, args...)
	if err != nil {
		return nil, 0, err
	}
	var report struct {
		CPU         float64
		Allocations map[string]float64
		Frames      []string
	}
	if err := json.Unmarshal([]byte(rest), &report); err != nil {
		return nil, 0, err
	}
	for name, n := range report.Allocations {
		all.add(allocations, shortName(m.module, name), n)
	}
	for _, name := range report.Frames {
		all.add(frames, shortName(m.module, name), 1)
	}
	return all, report.CPU, nil
}

// readRound returns the costs by the counters in a folder.
func (m *meter) readRound(folder string) (costs, error) {
	text, err := runCommand(m.folder, m.covdata, "textfmt", "-i="+folder, "-o=/dev/stdout")
	if err != nil {
		return nil, err
	}
	p, err := readProfile(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return countCosts(m.code, p, callsPerRound), nil
}

// patience is how long a command may take; compiling everything takes a minute on a slow machine.
const patience = 5 * time.Minute

// runCommand runs a command in a folder and returns its output, without space around it. The error
// has all of the output.
func runCommand(folder, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s%s", cmd, err, &out, &errs)
	}
	return strings.TrimSpace(out.String()), nil
}
