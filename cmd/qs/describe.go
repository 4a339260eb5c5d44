package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
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

// A methodDescription describes a method's types and properties.
type methodDescription struct {
	typed.Method
	name, codec, shape string
	why                string // reason why the description is missing; "" if it is available
	builtIn            bool   // built into every program, with its own codec
	stream             bool   // Output is the type of each item of a stream
}

// describe fetches the method's description from the program. If the program does not provide one, describe returns a
// description of an unknown method, which can still be called.
func (k *callCommand) describe(ctx context.Context) (methodDescription, error) {
	d := methodDescription{Method: typed.Unknown, name: k.method, codec: "msgpack"}
	if _, ok := k.c.context.Class().Registered(k.method); ok {
		d.why, d.builtIn = "it is built in", true
		return d, nil
	}
	within := cmp.Or(k.timeout, readOnlyTimeout)
	b, err := k.c.callReadOnly(ctx, within, "publish its types", inspect.RPCsRPC, nil, k.meta)
	if remote, answered := hg.RemoteOf(err); answered {
		d.why = missingTypesText(remote)
		k.c.missingTypes = d.why
		return d, nil
	}
	if errors.As(err, new(unansweredError)) {
		if hg.CodeOf(err) == hg.ErrTimeout {
			err = show.Reword(err, fmt.Sprintf("%s did not answer within %v (asked for its types first)", k.c.peer, within))
		}
		return d, k.c.adviseReadOnly(notSentError{fmt.Errorf("%s: NOT sent: %w", k.method, err)}, "--timeout")
	}
	if err != nil {
		return d, k.c.adviseError(inspect.RPCsRPC, err)
	}
	all, err := inspect.DecodeRPCs(b)
	if err != nil {
		return d, fmt.Errorf("RPC descriptions of %s: %w", k.c.peer, err)
	}
	defineCodes(b)
	i := slices.IndexFunc(all, func(rpc inspect.RPC) bool { return rpc.Name == k.method })
	if i < 0 {
		return d, k.c.newNoMethodError(k.method, ": NOT sent", all)
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

// missingTypesText returns the reason why a program has answered a request for its types with an error.
func missingTypesText(remote *hg.RemoteError) string {
	if remote.Code == hg.ErrNoMethod {
		return "the program does not tell what it serves (qs.Config.Inspect)"
	}
	verb := "refused"
	if remote.Code == hg.ErrPermission || remote.Code == hg.ErrDenied {
		verb = "denied"
	}
	return fmt.Sprintf("the request for the types (%s) was %s: %s", inspect.RPCsRPC, verb, cmp.Or(remote.Text, remote.Code.Error()))
}

// otherKind matches the text with which a program refuses a request for a method of another kind, and in it the kind.
var otherKind = regexp.MustCompile(`by the caller, and as (an? \w+ \(\w+\)) by the server`)

// explainKind returns a text and a remedy for the refusal of a request because the method is of another kind than the
// request. ok is false for other refusals. Requests are of the right kind if the program publishes its types.
func (c *client) explainKind(method string, remote *hg.RemoteError) (text, todo string, ok bool) {
	kind := otherKind.FindStringSubmatch(remote.Text)
	switch {
	case kind == nil || !remote.Refused:
		return "", "", false
	case strings.Contains(kind[1], "Upload"), strings.Contains(kind[1], "Duplex"):
		return fmt.Sprintf("%s is %s: its caller sends items", method, kind[1]), "call it from a program that uses package qs", true
	}
	return fmt.Sprintf("%s is %s, and this was not known, because %s", method, kind[1], cmp.Or(c.missingTypes, "it has changed")),
		fmt.Sprintf("let the program publish its types: it needs qs.Config.Inspect, and an authorizer that allows %s", inspect.RPCsRPC), true
}

// defineCodes defines names for the program's error codes, which are published with its methods. It ignores names that
// are invalid or conflict with another program's names. The codes of ignored names are displayed as numbers.
func defineCodes(listing []byte) {
	all, err := inspect.DecodeCodes(listing)
	if err != nil {
		return
	}
	for code, name := range all {
		_ = codes.SetName(codes.Code(code), name)
	}
}

// newNoMethodError returns the error for a method that the program does not serve. The text in then states the
// consequence for the command.
func (c *client) newNoMethodError(method, then string, all []inspect.RPC) error {
	var names []string
	for _, rpc := range all {
		if show.Text(rpc.Name) == rpc.Name { // names with special characters cannot be typed
			names = append(names, rpc.Name)
		}
	}
	found := similarNames(method, names)
	text := fmt.Sprintf("%s serves no method %q%s%s", c.peer, method, then, suggestionText(found))
	return show.Advise(usageError{text}, "to do:  "+c.listingAdvice(append(found, method)...))
}

// listingAdvice returns the command line that lists the program's methods. The command line includes the library's
// built-in methods if a given name resembles one of them.
func (c *client) listingAdvice(methods ...string) string {
	all := ""
	if slices.ContainsFunc(methods, inspect.IsBuiltIn) {
		all = "--all "
	}
	return fmt.Sprintf("look at what there is: qs rpcs %s%s", all, c.peer)
}

// noteNoInput prints a note if standard input is a file or pipe but the call has no input, because standard input is
// read only if the argument is -. It does not check whether the pipe contains data.
func (k *callCommand) noteNoInput(command string, d *methodDescription) {
	takesNone := !k.isRaw && d.In.Kind() == reflect.Struct && d.In.NumField() == 0
	if !isStdinGiven() || takesNone || slices.ContainsFunc(k.sourceFlag, func(a fieldFlag) bool { return a.value == "-" }) {
		return
	}
	sent := "no JSON given, the zero value is sent"
	if k.isRaw {
		sent = "no input given, an empty one is sent"
	}
	k.app.printNote(command, "note: "+sent+`; "-" reads the standard input`)
}

// checkRaw returns an error if the method uses the codec msgpack and cannot decode the input of --raw.
func (k *callCommand) checkRaw(d *methodDescription, input []byte) error {
	if d.codec != "msgpack" || d.builtIn || d.why != "" || len(input) == 0 || codec.Msgpack.Decode(input, new(msgpack.RawMessage)) == nil {
		return nil
	}
	return usageError{fmt.Sprintf("%s is of codec msgpack, and the input of --raw is none: without --raw JSON is converted; NOT sent", k.method)}
}

// newInput converts v to the method's input type.
func (d *methodDescription) newInput(v any) (reflect.Value, error) {
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

// printMethod decodes the answer b and prints the output that the answer contains.
func (d *methodDescription) printMethod(out io.Writer, b []byte) error {
	p := reflect.New(d.Out)
	if len(b) > 0 {
		if err := codec.Msgpack.Decode(b, p.Interface()); err != nil {
			return fmt.Errorf("the output of %s does not match its published type; the method ran, and --raw prints the bytes: %w", d.name, err)
		}
	}
	line, err := typed.ToJSON(p.Interface())
	if err != nil {
		return fmt.Errorf("the output of %s %w; the method ran", d.name, err)
	}
	_, err = fmt.Fprintf(out, "%s\n", show.EscapeJSON([]byte(line)))
	return newOutputError(d.name, err)
}
