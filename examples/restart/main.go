//go:build unix

// Command restart replaces a server while clients call it, and no call fails. A supervisor keeps the listening socket,
// as systemd does, and passes it to each generation of the server. A generation that is shutting down no longer accepts
// connections, so new clients reach the next one. A client that is connected to the old generation stays connected
// until its last call there has completed, and Retry repeats its new calls until then. If calls are long, therefore,
// give clients two addresses instead, and restart one server after the other.
//
//	supervisor, with the socket ─┬─► generation 1: serves … stop: rejects new calls, completes running ones, exits
//	                             └─► generation 2: serves the same socket
//	client ── calls continuously, with Retry ──► the serving generation
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Generation returns the name of the server that answers.
var Generation = qs.Define[time.Duration, string]("generation")

// generationEnv is the environment variable that is set for servers.
const generationEnv = "RESTART_GENERATION"

func main() {
	if name := os.Getenv(generationEnv); name != "" {
		check(serve(name))
		return
	}
	supervise(os.Stdout)
}

// serve runs a server. Its socket is descriptor 3, and it stops when its standard input ends. A service started by
// systemd also has its socket there; it would stop by means of a context from signal.NotifyContext.
func serve(name string) error {
	f := os.NewFile(3, "listener")
	defer f.Close()
	l, err := net.FileListener(f) // duplicates the descriptor
	if err != nil {
		return err
	}
	node, err := qs.Open("tcp://:0", qs.Config{TCP: tcp.Options{Listener: l.(*net.TCPListener)}})
	if err != nil {
		return err
	}
	Generation.Handle(node, func(ctx context.Context, work time.Duration) (string, error) {
		select {
		case <-time.After(work):
			return name, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	fmt.Println("ready") // read by the supervisor
	return node.Serve(ctx)
}

// A server is a process that serves.
type server struct {
	process *exec.Cmd
	stdin   io.Closer
}

// start starts a server with the given socket and returns when the server is ready.
func start(socket *os.File, name string) server {
	path, err := os.Executable()
	check(err)
	c := exec.Command(path)
	c.Env = append(os.Environ(), generationEnv+"="+name)
	c.ExtraFiles = []*os.File{socket} // descriptor 3
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	check(err)
	stdout, err := c.StdoutPipe()
	check(err)
	check(c.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n')
	check(err)
	return server{c, stdin}
}

// supervise runs two generations one after the other while a client calls continuously.
func supervise(out io.Writer) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(err)
	socket, err := l.File()
	check(err)
	first := start(socket, "first")

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := qs.Open("tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		qs.Retry(qs.RetryPolicy{Attempts: 100, BudgetRatio: -1}), // until the next generation answers
	}})
	check(err)
	defer client.Close()
	peer, err := client.Peer(ctx, "tcp://"+l.Addr().String())
	check(err)
	answer, err := Generation.Call(ctx, peer, 0)
	fmt.Fprintln(out, "before:", answer, err)

	long := Generation.Go(ctx, peer, 100*time.Millisecond) // in progress while its server is replaced
	second := start(socket, "second")
	check(first.stdin.Close()) // the first generation drains
	for answer == "first" {
		answer, err = Generation.Call(ctx, peer, 0)
		check(err)
	}
	fmt.Fprintln(out, "then:", answer, err)
	answer, err = long.Wait(ctx)
	fmt.Fprintln(out, "a call that was under way:", answer, err)
	check(first.process.Wait())
	check(second.stdin.Close())
	check(second.process.Wait())
	check(socket.Close())
	check(l.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
