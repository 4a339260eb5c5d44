package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/impi"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

func (a *app) newRendezvous() *cobra.Command {
	var s rendezvousServer
	c := &cobra.Command{
		Use: "rendezvous", Short: "Let processes on several machines find each other",
		Long: `Lets processes on several machines find each other: it prints the environment that they need, and ends when all of them have left.

With --impi it speaks IMPI 0.0, and prints its address only; IMPI_AUTH_NONE and IMPI_AUTH_KEY in its environment control who may join.`,
		Example: `  qs rendezvous -n 8 --listen 10.0.0.7:7000`,
		Args:    wantArgs(0, 0), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error { return a.serveRendezvous(&s) },
	}
	fs := c.Flags()
	fs.IntVarP(&s.n, "processes", "n", 0, "how many `processes` to wait for")
	fs.StringVarP(&s.listen, "listen", "l", "127.0.0.1:0", "`host:port` to listen at")
	fs.BoolVar(&s.strict, "impi", false, "speak IMPI 0.0")
	fs.DurationVarP(&s.timeout, "timeout", "t", time.Minute, "`time` within which all must arrive")
	return c
}

// A rendezvousServer holds the flags of qs rendezvous.
type rendezvousServer struct {
	n       int
	listen  string
	strict  bool
	timeout time.Duration
}

// A rendezvousReport is the JSON form of the environment for the processes, which the server prints
// once it is listening.
type rendezvousReport struct {
	Address string `json:"address"`
	Key     string `json:"key,omitempty"` // hexadecimal; omitted if the key was read from the environment
}

// serveRendezvous runs the server until all processes have left.
func (a *app) serveRendezvous(s *rendezvousServer) error {
	if s.n < 1 {
		return usageError{"--processes is required"}
	}
	cfg := rendezvous.ServerConfig{Size: s.n, Startup: s.timeout, OnEvent: a.printEvent}
	var err error
	if s.strict {
		cfg.Form = protocol.Strict
		if cfg.Auth, err = impi.AuthFromEnv(os.LookupEnv); err == nil && !cfg.Auth.None && cfg.Auth.Key == nil {
			err = usageError{"--impi: set IMPI_AUTH_NONE, so that any process may join, or IMPI_AUTH_KEY to a number that clients must present"}
		}
	} else {
		cfg.Auth.Secret, err = secretFromEnv()
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	r := rendezvousReport{Address: l.Addr().String()}
	if !s.strict && os.Getenv(rendezvous.EnvKey) == "" {
		r.Key = hex.EncodeToString(cfg.Auth.Secret)
	}
	err = a.printResult(r, func(out io.Writer) {
		if s.strict {
			fmt.Fprintln(out, r.Address)
			return
		}
		fmt.Fprintf(out, "export %s=%s\n", rendezvous.EnvAddr, r.Address)
		if r.Key != "" {
			fmt.Fprintf(out, "export %s=%s\n", rendezvous.EnvKey, r.Key)
		}
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, stop := a.untilSignal()
	defer stop()
	return rendezvous.Serve(ctx, l, cfg)
}

// secretFromEnv returns the secret from the environment. If there is none, it generates a new one.
func secretFromEnv() ([]byte, error) {
	text := os.Getenv(rendezvous.EnvKey)
	if text == "" {
		key := make([]byte, 32)
		_, err := rand.Read(key)
		return key, err
	}
	key, err := hex.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not hexadecimal", rendezvous.EnvKey)
	}
	return key, nil
}

// printEvent prints a note about an event of the rendezvous server.
func (a *app) printEvent(e protocol.Event) {
	switch e.Kind {
	case protocol.Started:
		a.printNote("rendezvous", "all processes have started")
	case protocol.Refused:
		a.printNote("rendezvous", "refused: "+e.Err.Error())
	case protocol.Odd, protocol.Failed:
		a.printNote("rendezvous", fmt.Sprintf("rank %d: %v", e.Rank, e.Err))
	}
}
