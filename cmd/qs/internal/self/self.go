package self

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Env marks the environment of processes started by this program. Tests use it to run the test binary as the program.
const Env = "QUICKSILVER_QS_CHILD"

// Ready begins the line in which a target reports its address.
const Ready = "listening at "

// A Child is this program running in another process, usually as a target.
type Child struct {
	Cmd   *exec.Cmd
	Addr  string // text that followed the word, if any
	stdin io.WriteCloser
}

// Output runs this program with args in the environment env, and returns its standard output. An error includes its
// standard error output.
func Output(ctx context.Context, env []string, args ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, args...)
	ownGroup(c)
	c.Env = append(env, Env+"=1")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // the process stops its own target
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(string(bytes.TrimSpace(exit.Stderr)))
	}
	return out, err
}

// Start starts this program in a new process, and waits until it prints word, followed by its address if it has one.
func Start(word string, args ...string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{Cmd: exec.Command(self, args...)}
	ownGroup(c.Cmd)
	diag := &early{}
	c.Cmd.Stderr = diag
	c.Cmd.Env = append(os.Environ(), Env+"=1")
	if c.stdin, err = c.Cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.Cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	line, err := readLine(stdout)
	addr, ok := strings.CutPrefix(line, word)
	if err != nil || !ok {
		c.Stop()
		return nil, fmt.Errorf("the other process did not start: %s%s", line, bytes.TrimSpace(diag.b))
	}
	diag.pass()
	c.Addr = addr
	return c, nil
}

// early buffers the output of a process until the process has started, and forwards it afterward.
type early struct {
	mu      sync.Mutex // guards the fields below
	b       []byte
	started bool
}

func (e *early) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started {
		return os.Stderr.Write(b)
	}
	e.b = append(e.b, b...)
	return len(b), nil
}

func (e *early) pass() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.started = true
	_, _ = os.Stderr.Write(e.b)
}

// readLine reads up to a newline, one byte at a time, so that subsequent bytes remain in the pipe.
func readLine(r io.Reader) (string, error) {
	var line []byte
	var b [1]byte
	for len(line) < 1024 {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return string(line), err
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	return string(line), nil
}

// Send writes a line to the process's standard input.
func (c *Child) Send(line string) error {
	_, err := fmt.Fprintln(c.stdin, line)
	return err
}

// Stop terminates the process and waits for it.
func (c *Child) Stop() { c.End(2 * time.Second) }

// End is like Stop, but gives the process up to most to exit by itself. It reports whether the process did so without
// an error.
func (c *Child) End(most time.Duration) bool {
	_ = c.stdin.Close()
	kill := time.AfterFunc(most, func() { _ = c.Cmd.Process.Kill() })
	defer kill.Stop()
	_ = c.Cmd.Wait()
	return c.Cmd.ProcessState != nil && c.Cmd.ProcessState.Success()
}
