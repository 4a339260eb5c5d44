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

// Env marks the environment of a process that this program started; its tests start it again by their own binary.
const Env = "QUICKSILVER_QS_CHILD"

// Ready begins the line with which a target reports its address.
const Ready = "listening at "

// A Child is this program in another process: a target, most of the time.
type Child struct {
	Cmd   *exec.Cmd
	Addr  string // what it has said behind the word, if anything
	stdin io.WriteCloser
}

// Output runs this program again with args in the environment env, and returns what it printed to the standard output. An error has
// what it printed to the standard error.
func Output(ctx context.Context, env []string, args ...string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, args...)
	ownGroup(c)
	c.Env = append(env, Env+"=1")
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // it ends its own target
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(string(bytes.TrimSpace(exit.Stderr)))
	}
	return out, err
}

// Start starts this program again, and waits until it prints word, and with it its address, if it has one.
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

// early buffers the output of a process until it has started, and passes it on from then on.
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

// readLine reads up to a newline, byte by byte: the bytes behind it stay in the pipe.
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

// Send writes a line to the standard input of the process.
func (c *Child) Send(line string) error {
	_, err := fmt.Fprintln(c.stdin, line)
	return err
}

// Stop ends the process and waits for it.
func (c *Child) Stop() { c.End(2 * time.Second) }

// End is Stop, with so much time for the process to end by itself; it reports whether it did, and without an error.
func (c *Child) End(most time.Duration) bool {
	_ = c.stdin.Close()
	kill := time.AfterFunc(most, func() { _ = c.Cmd.Process.Kill() })
	defer kill.Stop()
	_ = c.Cmd.Wait()
	return c.Cmd.ProcessState != nil && c.Cmd.ProcessState.Success()
}
