package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/impi"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// runRendezvous serves until all processes have left.
func runRendezvous(args []string, out io.Writer) error {
	var (
		n       int
		listen  string
		strict  bool
		timeout time.Duration
	)
	fs := flag.NewFlagSet("rendezvous [flags]", flag.ContinueOnError)
	fs.IntVar(&n, "n", 0, "how many `processes` to wait for")
	fs.StringVar(&listen, "listen", "127.0.0.1:0", "`host:port` to listen at")
	fs.BoolVar(&strict, "impi", false, "speak IMPI 0.0; IMPI_AUTH_NONE and IMPI_AUTH_KEY in the environment control who may join")
	fs.DurationVar(&timeout, "timeout", time.Minute, "`time` within which all must arrive")
	if err := parse(fs, args, 0, 0); err != nil {
		return err
	}
	if n < 1 {
		return usageError{"-n says how many processes there are"}
	}
	cfg := rendezvous.ServerConfig{Size: n, Startup: timeout, OnEvent: tellEvent}
	var err error
	if strict {
		cfg.Form = protocol.Strict
		if cfg.Auth, err = impi.AuthFromEnv(os.LookupEnv); err == nil && !cfg.Auth.None && cfg.Auth.Key == nil {
			err = usageError{"-impi: set IMPI_AUTH_NONE, so that everybody may join, or IMPI_AUTH_KEY to a number that clients must know"}
		}
	} else {
		cfg.Auth.Secret, err = secretFromEnv()
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if strict {
		fmt.Fprintln(out, l.Addr())
	} else {
		fmt.Fprintf(out, "export %s=%s\n", rendezvous.EnvAddr, l.Addr())
		if os.Getenv(rendezvous.EnvKey) == "" {
			fmt.Fprintf(out, "export %s=%x\n", rendezvous.EnvKey, cfg.Auth.Secret)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return rendezvous.Serve(ctx, l, cfg)
}

// secretFromEnv returns the secret that the environment has, or a new one.
func secretFromEnv() ([]byte, error) {
	text := os.Getenv(rendezvous.EnvKey)
	if text == "" {
		key := make([]byte, 32)
		_, err := rand.Read(key)
		return key, err
	}
	key, err := hex.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not a row of hexadecimal digits", rendezvous.EnvKey)
	}
	return key, nil
}

// tellEvent shows how a startup goes to the person who has started the server.
func tellEvent(e protocol.Event) {
	switch e.Kind {
	case protocol.Started:
		fmt.Fprintln(os.Stderr, "all processes have started")
	case protocol.Refused:
		fmt.Fprintln(os.Stderr, "refused:", show.Error(e.Err))
	case protocol.Odd, protocol.Failed:
		fmt.Fprintf(os.Stderr, "rank %d: %s\n", e.Rank, show.Error(e.Err))
	}
}
