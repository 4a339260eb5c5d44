package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// ready begins the line in which the target reports its address.
const ready = "listening at "

// A child is the target process. It exits when the pipe to its stdin is closed, so it cannot outlive this process, even
// if this process crashes.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  string
	opens string    // address for opening a class that can reach it
	once  sync.Once // for kill
}

// startChild starts this program again as the target and waits until it listens. The target is killed when ctx is done.
func startChild(ctx context.Context, transport string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self)}
	c.cmd.Env = append(os.Environ(), targetEnv+"="+transport)
	c.cmd.Stderr = os.Stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the target: %w", err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), ready)
	if err != nil || !ok {
		c.kill()
		return nil, fmt.Errorf("the target did not say where it listens, but %q (%v)", line, err)
	}
	c.addr, c.opens = addr, strings.SplitAfter(addr, "://")[0]
	if transport == "auto" {
		c.opens += ",sm://"
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill terminates the process at once, without an orderly shutdown, and waits for it.
func (c *child) kill() {
	c.once.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.stdin.Close()
		_ = c.cmd.Wait()
	})
}
