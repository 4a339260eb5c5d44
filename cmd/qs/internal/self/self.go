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

// Env is the environment variable that is set in processes started by this package. The test binary checks it and then
// runs as qs.
const Env = "QUICKSILVER_QS_CHILD"

// Ready is the prefix of the line in which a target prints its address.
const Ready = "listening at "

// A Child is another process that runs this program, usually as a target.
type Child struct {
	Cmd   *exec.Cmd
	Addr  string // text after the word passed to Start, if any
	stdin io.WriteCloser
}

// Output runs this program with args and the environment env, and returns its standard output. If the program fails,
// the error contains its standard error output.
func Output(ctx context.Context, env []string, args ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, args...)
	ownGroup(c)
	c.Env = append(env, Env+"=1")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // interrupt rather than kill, so that the process can stop its own target
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(string(bytes.TrimSpace(exit.Stderr)))
	}
	return out, err
}

// Start starts this program in a new process and waits until it prints a line that begins with word. The rest of the
// line becomes the Child's Addr.
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

// early buffers the standard error output of a process until pass is called, and forwards subsequent output directly.
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

// readLine reads a line, without its newline. It reads one byte at a time, so that the bytes after the line remain in
// the pipe.
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

// Send writes line, followed by a newline, to the process's standard input.
func (c *Child) Send(line string) error {
	_, err := fmt.Fprintln(c.stdin, line)
	return err
}

// Stop closes the process's standard input and waits for the process to exit. It kills the process after 2 seconds.
func (c *Child) Stop() { c.End(2 * time.Second) }

// End is like Stop, but kills the process after the duration most. It reports whether the process exited successfully.
func (c *Child) End(most time.Duration) bool {
	_ = c.stdin.Close()
	kill := time.AfterFunc(most, func() { _ = c.Cmd.Process.Kill() })
	defer kill.Stop()
	_ = c.Cmd.Wait()
	return c.Cmd.ProcessState != nil && c.Cmd.ProcessState.Success()
}
