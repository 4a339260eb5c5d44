package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/all"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// callEnds are an origin and a target that are connected.
type callEnds struct {
	call  func(n int) error // makes n calls, one after the other
	close func(ctx context.Context) error
}

// openEnds returns two ends that are connected by a transport, for calls of a kind.
func openEnds(kind, transport string) (*callEnds, error) {
	listen, ok := map[string]string{"tcp": "tcp://127.0.0.1:0", "udp": "udp://127.0.0.1:0", "sm": "sm://*"}[transport]
	if !ok {
		return nil, fmt.Errorf("-transport %q: want tcp, udp or sm", transport)
	}
	switch from := transport + "://"; kind {
	case "callback":
		return openCallback(listen, from)
	case "blocking":
		return openBlocking(listen, from)
	case "typed":
		return openTyped(listen, from)
	}
	return nil, fmt.Errorf("-kind %q: want callback, blocking or typed", kind)
}

// noSpin has a goroutine that waits sleep at once: how often it polls before it sleeps depends on
// how fast the other end is.
var noSpin = hg.Config{NA: na.Config{Spin: -1}}

// payload is the input and output of each call.
var payload = make([]byte, 64)

func echoRaw(r hg.Request) error {
	enterHandler()
	in, err := r.InputRaw()
	if err != nil {
		return err
	}
	return r.RespondRaw(in, nil)
}

// checkEcho returns an error if an echo does not have the length of its input.
func checkEcho(out []byte) error {
	if len(out) != len(payload) {
		return fmt.Errorf("sent %d bytes, got %d", len(payload), len(out))
	}
	return nil
}

// openRaw opens two classes with a context each, and a handle for the echo of the first.
func openRaw(listen, from string) (target, origin *hg.Context, h *hg.Handle, err error) {
	var contexts []*hg.Context
	for _, addr := range []string{listen, from} {
		class, err := hg.Open(addr, noSpin)
		if err != nil {
			return nil, nil, nil, err
		}
		if _, err = class.Register("echo", echoRaw); err != nil {
			return nil, nil, nil, err
		}
		hctx, err := class.NewContext()
		if err != nil {
			return nil, nil, nil, err
		}
		contexts = append(contexts, hctx)
	}
	target, origin = contexts[0], contexts[1]
	h, err = origin.Create(target.Class().Addr(), hg.HashName("echo"))
	return target, origin, h, err
}

// openCallback makes calls by ForwardRaw with a callback. One goroutine drives both ends in turn.
func openCallback(listen, from string) (*callEnds, error) {
	target, origin, h, err := openRaw(listen, from)
	if err != nil {
		return nil, err
	}
	ended, failed := false, error(nil)
	done := func(h *hg.Handle, err error) {
		var out []byte
		if err == nil {
			out, err = h.OutputRaw()
		}
		if err == nil {
			err = checkEcho(out)
		}
		ended, failed = true, err
	}
	call := func(n int) error {
		for range n {
			ended = false
			if err := h.ForwardRaw(payload, done); err != nil {
				return err
			}
			for !ended {
				for _, hctx := range []*hg.Context{target, origin} {
					if err := hctx.Progress(0); err != nil && !errors.Is(err, hg.ErrTimeout) {
						return err
					}
					hctx.Trigger(0)
				}
			}
			if failed != nil {
				return failed
			}
		}
		return nil
	}
	stop := func(ctx context.Context) error {
		return errors.Join(h.Close(), origin.Class().Shutdown(ctx), target.Class().Shutdown(ctx))
	}
	return &callEnds{call, stop}, nil
}

// openBlocking makes calls by CallRaw. A goroutine drives the target.
func openBlocking(listen, from string) (*callEnds, error) {
	target, origin, h, err := openRaw(listen, from)
	if err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() { _ = target.Wait(serving, func() bool { return false }) })
	call := func(n int) error {
		for range n {
			out, err := h.CallRaw(context.Background(), payload)
			if err == nil {
				err = checkEcho(out)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return &callEnds{call, func(ctx context.Context) error {
		err := errors.Join(h.Close(), origin.Class().Shutdown(ctx))
		stop()
		served.Wait()
		return errors.Join(err, target.Class().Shutdown(ctx))
	}}, nil
}

// message is input and output of the typed method.
type message struct{ Data []byte }

var echo = qs.Define[message, message]("echo")

// openTyped makes calls by Method.Call. A goroutine serves the target's node.
func openTyped(listen, from string) (*callEnds, error) {
	target, err := qs.Open(listen, qs.Config{HG: noSpin})
	if err != nil {
		return nil, err
	}
	echo.Handle(target, func(_ context.Context, in message) (message, error) {
		enterHandler()
		return in, nil
	})
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- target.Serve(serving) }()
	origin, err := qs.Open(from, qs.Config{HG: noSpin})
	if err != nil {
		stop()
		return nil, err
	}
	to, err := origin.Peer(serving, target.Addr().String())
	if err != nil {
		stop()
		return nil, err
	}
	call := func(n int) error {
		for range n {
			out, err := echo.Call(context.Background(), to, message{payload})
			if err == nil {
				err = checkEcho(out.Data)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return &callEnds{call, func(context.Context) error {
		err := origin.Close()
		stop()
		return errors.Join(err, <-served, target.Close())
	}}, nil
}
