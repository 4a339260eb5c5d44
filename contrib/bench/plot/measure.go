package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// measure runs every command of f, one after the other, so many rounds: what the machine does meanwhile changes all of them alike. It
// replaces what they printed before, unless keep says that it goes on with that. The programs are looked for in PATH.
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
