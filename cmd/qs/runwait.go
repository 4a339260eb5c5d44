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
	// lastCall is how long before the end of the grace processes are told to end: they may not have noticed.
	lastCall = 2 * time.Second
	// outputDelay is how long the output of a process that has ended may stay open: what it has started may have it.
	outputDelay = time.Second
	// reapDelay is how long the end of a process that was killed may take.
	reapDelay = 2 * outputDelay
)

// A waiting waits for the processes of a launch.
//
//	all run ── one fails, a signal comes ──► grace ── SIGTERM ──► last call ── SIGKILL ──► reaping ── gives up
//	   └────────── all have ended ──────────────┴───────────────────┴─────────────────────────┴──► the result
type waiting struct {
	l      *launch
	left   int // processes that have not ended
	failed []string
	next   []step // what is done to those left, in this order
	due    <-chan time.Time
	killed bool
	asked  bool // by SIGINT or SIGTERM to end
}

// A step is what is done when its time has come.
type step struct {
	after time.Duration // the step before
	do    func() error
}

// wait returns when all processes have ended: nil, or what has failed.
func (w *waiting) wait(signals <-chan os.Signal, served <-chan error) error {
	for w.left > 0 {
		select {
		case e := <-w.l.exits:
			w.ended(e)
		case s := <-signals:
			w.signaled(s)
		case err := <-w.l.lines.failed:
			w.unread(err)
		case err := <-served:
			served = nil
			var missing *protocol.MissingError
			if errors.As(err, &missing) && w.l.joined.Load() {
				w.fail(err.Error())
			}
		case <-w.due:
			if err := w.step(); err != nil {
				return err
			}
		}
	}
	switch {
	case len(w.failed) > 1:
		return fmt.Errorf("%d failures, the first: %s", len(w.failed), w.failed[0])
	case len(w.failed) > 0:
		return errors.New("1 failure")
	}
	return nil
}

func (w *waiting) ended(e exit) {
	w.left--
	w.l.cmds[e.rank] = nil
	if e.left && !w.killed {
		w.say("rank %d has left processes behind: killed", e.rank)
	}
	if e.err == nil {
		return
	}
	text := fmt.Sprintf("rank %d: %v", e.rank, e.err)
	if w.killed {
		text += ": it did not end on request"
	}
	w.fail(text)
}

func (w *waiting) say(format string, args ...any) {
	w.l.app.note("run", fmt.Sprintf(format, args...))
}

// fail notes a failure, which ends the others unless they are to go on.
func (w *waiting) fail(text string) {
	w.say("%s", text)
	w.failed = append(w.failed, text)
	if !w.l.keep {
		w.end()
	}
}

// signaled passes a signal on.
func (w *waiting) signaled(s os.Signal) {
	w.l.signal(s)
	switch {
	case !ends(s):
		return
	case w.asked && s != hangup:
		w.say("%v again: %s killed", s, w.running())
		w.next = w.kill(0)
		w.due = time.After(0)
		return
	}
	w.asked = w.asked || s != hangup
	w.say("%v: %s to end within %v", s, w.running(), w.l.grace)
	w.end()
}

// unread ends the processes when their output cannot be written any more.
func (w *waiting) unread(err error) {
	text := fmt.Sprintf("output: %v", err)
	w.say("%s: %s to end within %v", text, w.running(), w.l.grace)
	w.failed = append(w.failed, text)
	w.l.signal(terminate)
	w.end()
}

// end begins the grace, if it has not begun.
func (w *waiting) end() {
	if w.next != nil || w.killed {
		return
	}
	last := min(lastCall, w.l.grace/2)
	w.next = append([]step{{w.l.grace - last, func() error {
		w.l.signal(terminate)
		return nil
	}}}, w.kill(last)...)
	w.due = time.After(w.next[0].after)
}

func (w *waiting) kill(after time.Duration) []step {
	return []step{{after, func() error {
		w.killed = true
		w.l.signal(os.Kill)
		return nil
	}}, {reapDelay, func() error {
		if w.l.lines.blocked() {
			return fmt.Errorf("%s killed, and %v later their output is not written: what qs run prints is not read", w.running(), reapDelay)
		}
		return fmt.Errorf("%s killed, and not gone %v later", w.running(), reapDelay)
	}}}
}

// step does the next step.
func (w *waiting) step() error {
	do := w.next[0].do
	if w.next = w.next[1:]; len(w.next) > 0 {
		w.due = time.After(w.next[0].after)
	}
	return do()
}

// running names who has not ended.
func (w *waiting) running() string {
	var ranks []string
	for rank, cmd := range w.l.cmds {
		if cmd != nil {
			ranks = append(ranks, fmt.Sprint(rank))
		}
	}
	if len(ranks) == 1 {
		return "rank " + ranks[0] + " is"
	}
	return "ranks " + strings.Join(ranks, ", ") + " are"
}
