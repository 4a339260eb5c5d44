package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// measure runs every command in f once per round, so that other work on the machine affects all of
// them equally. It replaces their previous output unless keep is true. The programs must be in PATH.
func (f *file) measure(rounds int, keep bool) error {
	if !keep {
		for _, r := range f.Runs {
			r.Rounds = nil
		}
	}
	for round := range rounds {
		for _, r := range f.Runs {
			words := strings.Fields(r.Command)
			cmd := exec.Command(words[0], words[1:]...)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("%s: %w", r.Command, err)
			}
			var b bytes.Buffer
			if err := json.Compact(&b, out); err != nil {
				return fmt.Errorf("%s: %w", r.Command, err)
			}
			r.Rounds = append(r.Rounds, json.RawMessage(b.String()))
		}
		fmt.Fprintln(os.Stderr, "round", round+1, "of", rounds)
	}
	return nil
}
