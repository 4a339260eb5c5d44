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
	// killWarning is how long before the end of the grace period processes get another signal: they may not have handled the first.
	killWarning = 2 * time.Second
	// outputDelay is how long the output of a process that has ended may stay open: its children may have it.
	outputDelay = time.Second
	// reapDelay is how long the end of a process that was killed may take.
	reapDelay = 2 * outputDelay
)

// A waitState waits for the processes of a launch.
//
//	all run ── one fails, a signal comes ──► grace ── SIGTERM ──► last call ── SIGKILL ──► reaping ── gives up
//	   └────────── all have ended ──────────────┴───────────────────┴─────────────────────────┴──► the result
type waitState struct {
	launch   *launch
	left     int // processes that have not ended
	failures []string
	steps    []endStep // the steps that end the remaining processes, in this order
	nextStep <-chan time.Time
	isKilled bool
	isEnding bool // by SIGINT or SIGTERM to end
}

// An endStep is an action that ends the remaining processes, after a delay.
type endStep struct {
	after time.Duration // the delay after the step before
	do    func() error
}

// waitAll blocks until all processes have ended. It returns the failures, or nil.
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

// recordFailure records a failure, which ends the other processes unless --keep-going is set.
func (w *waitState) recordFailure(text string) {
	w.printText("%s", text)
	w.failures = append(w.failures, text)
	if !w.launch.keep {
		w.startGrace()
	}
}

// handleSignal passes a signal on.
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

// handleOutputError ends the processes when their output can no longer be written.
func (w *waitState) handleOutputError(err error) {
	text := fmt.Sprintf("output: %v", err)
	w.printText("%s: %s to end within %v", text, w.runningText(), w.launch.grace)
	w.failures = append(w.failures, text)
	w.launch.signalAll(terminate)
	w.startGrace()
}

// startGrace starts the grace period, if it has not started.
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

// runningText names the processes that have not ended.
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
