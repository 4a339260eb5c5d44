package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

const (
	// killWarning is how long before the end of the grace period processes receive a second signal, since they may not
	// have handled the first.
	killWarning = 2 * time.Second
	// outputDelay is how long the output of a process that has exited may stay open, since its children may still hold
	// it.
	outputDelay = time.Second
	// reapDelay limits how long a killed process may take to exit.
	reapDelay = 2 * outputDelay
)

// A waitState waits for the processes of a launch.
//
//	all run ── one fails, a signal comes ──► grace ── SIGTERM ──► last call ── SIGKILL ──► reaping ── gives up
//	   └────────── all have ended ──────────────┴───────────────────┴─────────────────────────┴──► the result
type waitState struct {
	launch   *launch
	left     int // number of running processes
	failures []string
	steps    []endStep // steps that terminate the remaining processes, in order
	nextStep <-chan time.Time
	isKilled bool
	isEnding bool // SIGINT or SIGTERM has been received
}

// An endStep is an action that terminates the remaining processes, to be run after a delay.
type endStep struct {
	after time.Duration // delay after the previous step
	do    func() error
}

// waitAll blocks until all processes have exited. It returns an error if there were failures.
func (w *waitState) waitAll(signals <-chan os.Signal, served <-chan error) error {
	for w.left > 0 {
		select {
		case e := <-w.launch.exits:
			w.handleExit(e)
		case s := <-signals:
			w.handleSignal(s)
		case err := <-w.launch.lines.failed:
			w.handleOutputError(err)
		case err := <-served:
			served = nil
			var missing *protocol.MissingError
			if errors.As(err, &missing) && w.launch.isJoined.Load() {
				w.recordFailure(err.Error())
			}
		case <-w.nextStep:
			if err := w.runStep(); err != nil {
				return err
			}
		}
	}
	switch {
	case len(w.failures) > 1:
		return fmt.Errorf("%d failures, the first: %s", len(w.failures), w.failures[0])
	case len(w.failures) > 0:
		return errors.New("1 failure")
	}
	return nil
}

func (w *waitState) handleExit(e processExit) {
	w.left--
	w.launch.cmds[e.rank] = nil
	if e.left && !w.isKilled {
		w.printText("rank %d has left processes behind: killed", e.rank)
	}
	if e.err == nil {
		return
	}
	text := fmt.Sprintf("rank %d: %v", e.rank, e.err)
	if w.isKilled {
		text += ": it did not end on request"
	}
	w.recordFailure(text)
}

func (w *waitState) printText(format string, args ...any) {
	w.launch.app.printNote("run", fmt.Sprintf(format, args...))
}

// recordFailure records a failure. Unless --keep-going is set, it starts to terminate the other processes.
func (w *waitState) recordFailure(text string) {
	w.printText("%s", text)
	w.failures = append(w.failures, text)
	if !w.launch.keep {
		w.startGrace()
	}
}

// handleSignal forwards a signal to the processes.
func (w *waitState) handleSignal(s os.Signal) {
	w.launch.signalAll(s)
	switch {
	case !isTermination(s):
		return
	case w.isEnding && s != hangup:
		w.printText("%v again: %s killed", s, w.runningText())
		w.steps = w.killSteps(0)
		w.nextStep = time.After(0)
		return
	}
	w.isEnding = w.isEnding || s != hangup
	w.printText("%v: %s to end within %v", s, w.runningText(), w.launch.grace)
	w.startGrace()
}

// handleOutputError terminates the processes when their output can no longer be written.
func (w *waitState) handleOutputError(err error) {
	text := fmt.Sprintf("output: %v", err)
	w.printText("%s: %s to end within %v", text, w.runningText(), w.launch.grace)
	w.failures = append(w.failures, text)
	w.launch.signalAll(terminate)
	w.startGrace()
}

// startGrace starts the grace period, if it has not started yet.
func (w *waitState) startGrace() {
	if w.steps != nil || w.isKilled {
		return
	}
	last := min(killWarning, w.launch.grace/2)
	w.steps = append([]endStep{{w.launch.grace - last, func() error {
		w.launch.signalAll(terminate)
		return nil
	}}}, w.killSteps(last)...)
	w.nextStep = time.After(w.steps[0].after)
}

func (w *waitState) killSteps(after time.Duration) []endStep {
	return []endStep{{after, func() error {
		w.isKilled = true
		w.launch.signalAll(os.Kill)
		return nil
	}}, {reapDelay, func() error {
		if w.launch.lines.isWriting() {
			return fmt.Errorf("%s killed; %v later the output of qs run is still blocked", w.runningText(), reapDelay)
		}
		return fmt.Errorf("%s killed, but not exited %v later", w.runningText(), reapDelay)
	}}}
}

// runStep runs the next step.
func (w *waitState) runStep() error {
	do := w.steps[0].do
	if w.steps = w.steps[1:]; len(w.steps) > 0 {
		w.nextStep = time.After(w.steps[0].after)
	}
	return do()
}

// runningText returns the ranks of the running processes as text.
func (w *waitState) runningText() string {
	var ranks []string
	for rank, cmd := range w.launch.cmds {
		if cmd != nil {
			ranks = append(ranks, fmt.Sprint(rank))
		}
	}
	if len(ranks) == 1 {
		return "rank " + ranks[0] + " is"
	}
	return "ranks " + strings.Join(ranks, ", ") + " are"
}
