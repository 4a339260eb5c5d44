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
	// killWarning is how long before the end of the grace period processes receive a termination signal, because they
	// may not have handled the first signal.
	killWarning = 2 * time.Second
	// outputDelay is how long to keep reading the output of a process that has exited, because its children may still
	// have the output open.
	outputDelay = time.Second
	// reapDelay is the maximum time to wait for a killed process to exit.
	reapDelay = 2 * outputDelay
)

// A waitState waits for the processes of a launch and terminates them if necessary.
//
// The grace period starts when a process fails, unless --keep is set, when output cannot be written, or when a
// termination signal is received. The remaining processes receive SIGTERM shortly before the end of the grace period
// and SIGKILL at its end. If they have not exited reapDelay later, waitAll returns an error without waiting for them.
type waitState struct {
	launch   *launch
	left     int // number of running processes
	failures []string
	steps    []endStep // steps that terminate the remaining processes, in order
	nextStep <-chan time.Time
	isKilled bool
	isEnding bool // SIGINT or SIGTERM has been received
}

// An endStep is one step in terminating the remaining processes.
type endStep struct {
	after time.Duration // delay after the previous step
	do    func() error
}

// waitAll blocks until all processes have exited. It returns an error if there was a failure, or if killed processes do
// not exit.
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

// recordFailure prints and records a failure. Unless --keep is set, it then starts the grace period.
func (w *waitState) recordFailure(text string) {
	w.printText("%s", text)
	w.failures = append(w.failures, text)
	if !w.launch.keep {
		w.startGrace()
	}
}

// handleSignal forwards a signal to the processes. A termination signal also starts the grace period, and a second one
// kills the processes. SIGHUP does not count as the first or the second, because it may be delivered several times.
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

// handleOutputError signals the processes to terminate, because their output can no longer be written.
func (w *waitState) handleOutputError(err error) {
	text := fmt.Sprintf("output: %v", err)
	w.printText("%s: %s to end within %v", text, w.runningText(), w.launch.grace)
	w.failures = append(w.failures, text)
	w.launch.signalAll(terminate)
	w.startGrace()
}

// startGrace starts the grace period, unless termination has already started.
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

// runStep runs the next termination step and schedules the one after it.
func (w *waitState) runStep() error {
	do := w.steps[0].do
	if w.steps = w.steps[1:]; len(w.steps) > 0 {
		w.nextStep = time.After(w.steps[0].after)
	}
	return do()
}

// runningText returns a text that lists the ranks of the running processes.
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
