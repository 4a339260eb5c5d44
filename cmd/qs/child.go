package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// childEnv marks the environment of a target that this program started; its tests start it again by their own binary.
const childEnv = "QUICKSILVER_QS_CHILD"

// A child is this program in another process: a target, most of the time.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	addr  string
}

// startChild starts this program again as the target of n.
func startChild(n *network, listen string) (*child, error) {
	args := append([]string{"serve", "-child"}, n.args()...)
	return startSelf(ready, append(args, listen)...)
}

// startSelf starts this program again, and waits until it says word, and with it its address, if it has one.
func startSelf(word string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self, args...)}
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = append(os.Environ(), childEnv+"=1")
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	line, err := readLine(stdout)
	addr, ok := strings.CutPrefix(line, word)
	if err != nil || !ok {
		c.stop()
		return nil, errors.Join(fmt.Errorf("the other process did not start; it said %q", line), err)
	}
	c.addr = addr
	return c, nil
}

// readLine reads up to a newline, byte by byte: what follows stays in the pipe.
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

// stop ends the target and waits for it.
func (c *child) stop() {
	_ = c.stdin.Close()
	kill := time.AfterFunc(2*time.Second, func() { _ = c.cmd.Process.Kill() })
	_ = c.cmd.Wait()
	kill.Stop()
}
