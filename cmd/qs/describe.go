package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A description is what is known of a method.
type description struct {
	typed.Method
	name, codec, shape string
	why                string // nothing is known; "" if it is
	builtIn            bool   // every program has it, in its own codec
	stream             bool   // its output is that of each item
}

// describe asks the program what the method is. Of one that does not tell nothing is known, and the call can be made all the same.
func (k *calling) describe(ctx context.Context) (description, error) {
	d := description{Method: typed.Unknown, name: k.method, codec: "msgpack"}
	if _, ok := k.c.hctx.Class().Registered(k.method); ok {
		d.why, d.builtIn = "it is built in", true
		return d, nil
	}
	within := cmp.Or(k.timeout, askTimeout)
	b, err := k.c.ask(ctx, within, "publish its types", inspect.RPCsRPC, nil, k.meta)
	if _, answered := hg.RemoteOf(err); answered {
		d.why = "the program does not tell what it serves (qs.Config.Inspect)"
		return d, nil
	}
	if errors.As(err, new(unansweredError)) {
		if hg.CodeOf(err) == hg.ErrTimeout {
			err = show.Reword(err, fmt.Sprintf("%s did not answer within %v (asked for its types first)", k.c.peer, within))
		}
		return d, k.c.adviseAsk(notSentError{fmt.Errorf("%s: NOT sent: %w", k.method, err)}, "--timeout")
	}
	if err != nil {
		return d, k.c.advise(inspect.RPCsRPC, err)
	}
	all, err := inspect.DecodeRPCs(b)
	if err != nil {
		return d, fmt.Errorf("what %s says of its RPCs: %w", k.c.peer, err)
	}
	learnCodes(b)
	i := slices.IndexFunc(all, func(rpc inspect.RPC) bool { return rpc.Name == k.method })
	if i < 0 {
		return d, k.c.noMethod(k.method, ": NOT sent", all)
	}
	if r := newRPCReport(all[i]); r.Items != "" {
		return d, usageError{fmt.Sprintf("%s is of kind %s: its caller sends items, which needs a program that calls it with package qs; NOT sent", k.method, r.Kind)}
	}
	k.oneWay, d.codec = all[i].OneWay, all[i].Codec
	d.shape, d.stream = strings.CutSuffix(all[i].Shape, " ...")
	if d.Method, err = typed.Parse(d.shape); err != nil {
		d.Method, d.why = typed.Unknown, "the program does not publish its types"
	}
	return d, nil
}

// learnCodes has errors say the names that a program has given its own codes, which it publishes with its methods. One that is none, or that
// another program has called otherwise, stays a number.
func learnCodes(listing []byte) {
	all, err := inspect.DecodeCodes(listing)
	if err != nil {
		return
	}
	for code, name := range all {
		_ = codes.SetName(codes.Code(code), name)
	}
}

// noMethod is the error for a method that is not among those of the program; then is what that means for the command.
func (c *client) noMethod(method, then string, all []inspect.RPC) error {
	var names []string
	for _, rpc := range all {
		if show.Text(rpc.Name) == rpc.Name { // else nobody can type it
			names = append(names, rpc.Name)
		}
	}
	found := similar(method, names)
	text := fmt.Sprintf("%s serves no method %q%s%s", c.peer, method, then, suggest(found))
	return show.Advise(usageError{text}, "to do:  "+c.listing(append(found, method)...))
}

// listing says how to see the methods of the program, with those of Quicksilver itself if one of the names is like theirs.
func (c *client) listing(methods ...string) string {
	all := ""
	if slices.ContainsFunc(methods, inspect.IsBuiltIn) {
		all = "--all "
	}
	return fmt.Sprintf("look at what there is: qs rpcs %s%s", all, c.peer)
}

// noteNoInput notes that a call has no input, if a file or a pipe is the standard input: an argument reads it, and nothing else does. What is in
// the pipe, and when it comes, makes no difference.
func (k *calling) noteNoInput(command string, d *description) {
	takesNone := !k.isRaw && d.In.Kind() == reflect.Struct && d.In.NumField() == 0
	if !isStdinGiven() || takesNone || slices.ContainsFunc(k.sourceFlag, func(a assignment) bool { return a.value == "-" }) {
		return
	}
	sent := "no JSON given, the zero value is sent"
	if k.isRaw {
		sent = "no input given, an empty one is sent"
	}
	k.app.note(command, "note: "+sent+`; "-" reads the standard input`)
}

// checkRaw refuses an input of --raw that a method with the codec msgpack cannot decode.
func (k *calling) checkRaw(d *description, input []byte) error {
	if d.codec != "msgpack" || d.builtIn || d.why != "" || len(input) == 0 || codec.Msgpack.Decode(input, new(msgpack.RawMessage)) == nil {
		return nil
	}
	return usageError{fmt.Sprintf("%s is of codec msgpack, and the input of --raw is none: without --raw JSON is converted; NOT sent", k.method)}
}

// input returns the input, by its type.
func (d *description) input(v any) (reflect.Value, error) {
	in, err := typed.FromJSON(d.In, v)
	if err != nil {
		text := show.Text("the input: " + err.Error() + "; NOT sent")
		if d.why == "" {
			what, _, _ := strings.Cut(d.shape, " -> ")
			if text += "; " + d.name + " takes "; len(what) <= 200 {
				text += show.Text(what)
			} else {
				text += "what qs rpcs lists"
			}
		}
		return in, usageError{text}
	}
	return in, nil
}

// print decodes an answer and prints the output in it.
func (d *description) print(out io.Writer, b []byte) error {
	p := reflect.New(d.Out)
	if len(b) > 0 {
		if err := codec.Msgpack.Decode(b, p.Interface()); err != nil {
			return fmt.Errorf("the output of %s is not what the program says that it is; the method ran, and --raw prints it as it is: %w", d.name, err)
		}
	}
	line, err := typed.ToJSON(p.Interface())
	if err != nil {
		return fmt.Errorf("the output of %s %w; the method ran", d.name, err)
	}
	_, err = fmt.Fprintf(out, "%s\n", show.EscapeJSON([]byte(line)))
	return unwritten(d.name, err)
}
