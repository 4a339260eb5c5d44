package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

const callUsage = `call [flags] ADDRESS METHOD [JSON]

Calls a method of any program. The input goes as msgpack, which typed methods take, and the output is printed as JSON; bytes are
base64 there. Without JSON the input is null; @FILE stands for what is in a file, - for the standard input. "qs rpcs ADDRESS"
lists the methods, with the fields that are a Source or a Sink: -source and -sink lend a file in one. Other ones stay empty.
`

func runCall(args []string, out io.Writer) error {
	fs := flag.NewFlagSet(callUsage, flag.ContinueOnError)
	var n network
	n.peerFlags(fs)
	timeout := fs.Duration("timeout", 10*time.Second, "`time` that the call may take; the target is told")
	raw := fs.Bool("raw", false, "the third argument is sent as it is, and so is the output printed: for methods of codec raw")
	source := fs.String("source", "", "`FIELD=FILE`: the method reads the file")
	sink := fs.String("sink", "", "`FIELD=FILE`: the method writes the file, which is emptied before")
	if err := parse(fs, args, 2, 3); err != nil {
		return err
	}
	lends := *source != "" || *sink != ""
	if lends && *raw {
		return usageError{"-source and -sink are for methods that take msgpack, not for -raw"}
	}
	method, text := fs.Arg(1), []byte("null")
	if fs.NArg() == 3 {
		var err error
		if text, err = argument(fs.Arg(2)); err != nil {
			return fmt.Errorf("the input cannot be read: %w", err)
		}
	}
	in, err := fromJSON(text)
	if err != nil && !*raw {
		return usageError{err.Error()}
	}
	c, err := dial(&n, fs.Arg(0))
	if err != nil {
		return err
	}
	defer c.close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if lends {
		v, err := c.callLending(ctx, method, in, *source, *sink)
		if err != nil {
			return c.advise(method, err)
		}
		return printJSON(out, method, v)
	}
	id, err := c.hctx.Class().RegisterRPC(hg.RPC{Name: method, Codec: codec.Msgpack})
	if errors.Is(err, hg.ErrExists) { // built in here, too
		if err = c.hctx.Class().Deregister(hg.HashName(method)); err == nil {
			id, err = c.hctx.Class().RegisterRPC(hg.RPC{Name: method, Codec: codec.Msgpack})
		}
	}
	if err != nil {
		return err
	}
	h, err := c.hctx.Create(c.peer, id)
	if err != nil {
		return err
	}
	defer h.Close()
	if *raw {
		if fs.NArg() < 3 {
			text = nil
		}
		b, err := h.CallRaw(ctx, text)
		if err == nil {
			_, err = out.Write(b)
		}
		return c.advise(method, err)
	}
	if err := h.Call(ctx, in, nil); err != nil {
		return c.advise(method, err)
	}
	var v any
	if b, err := h.OutputRaw(); err != nil || len(b) > 0 {
		if err := h.Output(&v); err != nil {
			return fmt.Errorf("the output of %s is nothing that JSON can say; -raw prints it as it is: %w", method, err)
		}
	}
	return printJSON(out, method, v)
}

func printJSON(out io.Writer, method string, v any) error {
	line, err := toJSON(v)
	if err != nil {
		return fmt.Errorf("the output of %s %w", method, err)
	}
	_, err = fmt.Fprintln(out, line)
	return err
}

// argument returns what an argument stands for.
func argument(text string) ([]byte, error) {
	switch name, file := strings.CutPrefix(text, "@"); {
	case file:
		return os.ReadFile(name)
	case text == "-":
		return io.ReadAll(os.Stdin)
	}
	return []byte(text), nil
}

// advise says of the error of a call what it was, what became of the request, and what can be done.
func (c *client) advise(method string, err error) error {
	if errors.As(err, &usageError{}) || err == nil {
		return err
	}
	code, detail := hg.CodeOf(err), ""
	remote, answered := hg.RemoteOf(err)
	if code == hg.ErrUnreachable {
		return files.Explain(c.peer, err)
	}
	if answered {
		code = remote.Code
		var v any
		if remote.Detail(&v) == nil {
			if text, err := toJSON(v); err == nil {
				detail = "\n  detail: " + text
			}
		}
	}
	what := advice(code, hg.FateOf(err), answered, c.peer.String())
	return fmt.Errorf("%w\n  code:   %d, %v%s\n  to do:  %s", err, uint8(code), code, detail, what)
}

func advice(code hg.Code, fate hg.Fate, answered bool, addr string) string {
	switch {
	case answered && code == hg.ErrNoEntry:
		return "look at what there is: qs rpcs " + addr
	case answered && (code == hg.BadInput || code == hg.ErrProtocol):
		return "look at the codec and the input it wants (qs rpcs " + addr + "); -raw is for codec raw"
	case code == hg.Denied || code == hg.ErrPermission:
		return "show a certificate that the program lets in: -cert and -key"
	case code == hg.ErrTimeout && fate != hg.NotRun:
		return "give it more time with -timeout; it may have run, so look before you repeat it"
	case fate == hg.NotRun:
		return "it did not run: repeat it, or look at what the text says"
	case fate == hg.MaybeRan:
		return "it may have run: look before you repeat it"
	}
	return "the method ran and said so: what to do is in its text"
}
