package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// fieldFlags holds the values of a repeatable flag of the form NAME=VALUE.
type fieldFlags []fieldFlag

type fieldFlag struct{ name, value string }

// String implements pflag.Value.
func (*fieldFlags) String() string { return "" }

// Type implements pflag.Value.
func (*fieldFlags) Type() string { return "NAME=VALUE" }

// Set implements pflag.Value.
func (a *fieldFlags) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("want NAME=VALUE")
	}
	if slices.ContainsFunc(*a, func(a fieldFlag) bool { return a.name == name }) {
		return fmt.Errorf("duplicate name %s", name)
	}
	*a = append(*a, fieldFlag{name, value})
	return nil
}

// A lentFile is an open file whose contents are lent through a field of the input.
type lentFile struct {
	field string
	f     *os.File
	w     io.Writer           // for a sink, writes to f or to a terminal
	end   func(ok bool) error // closes the file; if ok is true, a sink is first renamed to its final name
}

// openSources opens the files whose contents are lent as Sources.
func (k *callCommand) openSources(flags fieldFlags) error {
	for _, a := range flags {
		l := lentFile{field: a.name, f: os.Stdin, end: func(bool) error { return nil }}
		if a.value != "-" {
			f, err := os.Open(a.value)
			if err != nil {
				return err
			}
			l.f, l.end = f, func(bool) error { return f.Close() }
		}
		k.sources = append(k.sources, l)
		if info, err := l.f.Stat(); err == nil && info.IsDir() {
			return fmt.Errorf("%s is a directory", a.value)
		}
	}
	return nil
}

// openSinks opens the files that receive the data written to Sinks.
func (k *callCommand) openSinks(flags fieldFlags) error {
	for _, a := range flags {
		l, err := openSink(a.value)
		if err != nil {
			return err
		}
		l.field, l.w = a.name, l.f
		if l.f == os.Stdout {
			out, flush := k.app.dataWriter()
			l.w, l.end = out, func(bool) error { return flush() }
		}
		k.sinks = append(k.sinks, l)
	}
	return nil
}

// closeFiles closes the open files and removes incomplete sinks.
func (k *callCommand) closeFiles() {
	for _, l := range append(k.sources, k.sinks...) {
		_ = l.end(false)
	}
}

// maxSinks is the maximum number of Sinks in a method's input. It is also the maximum number of Sources that can be
// lent. Each Sink and Source is a field of a type in this file.
const maxSinks = 4

type (
	// A lendingInput is the input of a method that lends memory. During encoding, the lent fields are inserted into a
	// value of the method's input type.
	lendingInput[Sinks any] struct {
		sources
		Sinks Sinks
		into  *inputEncoder
	}
	sources struct{ A, B, C, D qs.Source }
	sinks1  struct{ A qs.Sink }
	sinks2  struct{ A, B qs.Sink }
	sinks3  struct{ A, B, C qs.Sink }
	sinks4  struct{ A, B, C, D qs.Sink }
)

// An inputEncoder encodes an input together with the fields that lend memory.
type inputEncoder struct {
	in             reflect.Value // pointer to the input
	sources, sinks [][]int       // index paths of the fields
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (i lendingInput[Sinks]) EncodeMsgpack(e *msgpack.Encoder) error {
	own := reflect.New(i.into.in.Type().Elem())
	own.Elem().Set(i.into.in.Elem())
	put := func(from any, paths [][]int) {
		for n, path := range paths {
			own.Elem().FieldByIndex(path).Set(reflect.ValueOf(from).Field(n))
		}
	}
	put(i.sources, i.into.sources)
	put(i.Sinks, i.into.sinks)
	return e.Encode(own.Interface())
}

// callLending makes a call that has a stream or that lends files.
func (k *callCommand) callLending(ctx context.Context, d methodDescription, flags fieldFlags, out io.Writer) error {
	if d.why != "" {
		return usageError{fmt.Sprintf("--source and --sink: %s: the fields of %s are not known; NOT sent", d.why, d.name)}
	}
	in, err := d.newInput(k.input)
	if err != nil {
		return err
	}
	into := &inputEncoder{in: in}
	var from sources
	for n, l := range k.sources {
		path, err := d.findField("--source", l.field, "Source", d.Sources())
		if err != nil {
			return err
		}
		if n == maxSinks {
			return usageError{fmt.Sprintf("--source: at most %d", maxSinks)}
		}
		into.sources = append(into.sources, path)
		reflect.ValueOf(&from).Elem().Field(n).Set(reflect.ValueOf(newSource(l.f)))
	}
	places := d.Sinks()
	for _, a := range flags {
		if _, err := d.findField("--sink", a.name, "Sink", places); err != nil {
			return err
		}
		if a.value == "-" {
			out = os.Stderr
		}
	}
	if len(places) > maxSinks {
		return usageError{fmt.Sprintf("--source and --sink: %s has %d Sinks, there may be %d", d.name, len(places), maxSinks)}
	}
	if err := k.openSinks(flags); err != nil {
		return failedError{fmt.Errorf("%w: NOT sent", err)}
	}
	var to [maxSinks]qs.Sink // in the order of the method's Sinks
	for n, place := range places {
		into.sinks = append(into.sinks, place.Path)
		for _, l := range k.sinks {
			if l.field == place.Name {
				to[n] = qs.Writer(l.w)
			}
		}
	}
	if d.stream {
		return k.callStream(ctx, &d, from, into, out)
	}
	call := []func(context.Context, *callCommand, sources, *inputEncoder, [maxSinks]qs.Sink) (msgpack.RawMessage, error){
		callLending[struct{}], callLending[sinks1], callLending[sinks2], callLending[sinks3], callLending[sinks4]}[len(places)]
	b, err := call(ctx, k, from, into, to)
	if err != nil {
		return k.c.adviseError(k.method, err)
	}
	for i := range k.sinks {
		if err := k.sinks[i].end(true); err != nil {
			return newOutputError(k.method, err)
		}
	}
	return d.printMethod(out, b)
}

// callStream makes a call that has a stream.
func (k *callCommand) callStream(ctx context.Context, d *methodDescription, from sources, into *inputEncoder, out io.Writer) error {
	ctx, peer, err := k.prepareTypedCall(ctx)
	if err != nil {
		return err
	}
	count := 0
	s := qs.DefineStream[lendingInput[struct{}], msgpack.RawMessage](k.method, qs.WithCodec(codec.Msgpack))
	for item, err := range s.Call(ctx, peer, lendingInput[struct{}]{sources: from, into: into}) {
		if err != nil {
			return k.adviseItems(count, err)
		}
		if err := d.printMethod(out, item); err != nil {
			return err
		}
		if count++; count == k.count {
			break
		}
	}
	return nil
}

// adviseItems is like adviseError, but for a stream that failed after count items. A positive count shows that the
// handler has begun.
func (k *callCommand) adviseItems(count int, err error) error {
	_, answered := hg.RemoteOf(err)
	code := hg.CodeOf(err)
	switch {
	case count == 0 && !answered && code == hg.ErrTimeout && hg.FateOf(err) != hg.NotRun:
		err = show.Reword(err, fmt.Sprintf("%s: %s sent no item within %v; %s", k.method, k.c.peer, k.timeout, fateClause(hg.FateOf(err))))
		return show.Advise(err, fmt.Sprintf("code:   %d, %v", uint8(code), code),
			show.ToDo+"use --timeout 0 for a subscription, whose items may come at any time; otherwise check before you retry it")
	case count == 0 || answered:
		return k.c.adviseError(k.method, err)
	}
	by := "ended by --timeout, " + k.timeout.String() + ","
	switch {
	case errors.Is(err, errInterrupted):
		by = "interrupted"
	case hg.CodeOf(err) != hg.ErrTimeout && !errors.Is(err, context.DeadlineExceeded):
		by = fmt.Sprintf("%s was lost", k.c.peer)
		if call, ok := errors.AsType[*hg.Error](err); ok {
			by = files.SayUnanswered(k.c.peer, call)
		}
	}
	err = show.Reword(err, fmt.Sprintf("%s: %s after %s; it ran", k.method, by, countText(count, "item")))
	lines := []string{fmt.Sprintf("code:   %d, %v", uint8(code), code)}
	if code == hg.ErrTimeout {
		lines = append(lines, show.ToDo+"give it more time with --timeout, 0 for no limit, or end it with --count")
	}
	return ranError{show.Advise(err, lines...)}
}

// prepareTypedCall returns a context and a Peer with which a call can be made through package qs.
func (k *callCommand) prepareTypedCall(ctx context.Context) (context.Context, qs.Peer, error) {
	for name, value := range k.meta.All() {
		ctx = qs.WithMetadata(ctx, name, value)
	}
	if err := k.closeHandle(); err != nil {
		return ctx, qs.Peer{}, err
	}
	peer, err := k.c.node.Peer(ctx, k.c.peer.String())
	return ctx, peer, err
}

// callLending calls a method whose input has as many Sinks as the type Sinks has fields.
func callLending[Sinks any](ctx context.Context, k *callCommand, from sources, into *inputEncoder, to [maxSinks]qs.Sink) (msgpack.RawMessage, error) {
	ctx, peer, err := k.prepareTypedCall(ctx)
	if err != nil {
		return nil, err
	}
	in := lendingInput[Sinks]{sources: from, into: into}
	for n := range into.sinks {
		reflect.ValueOf(&in.Sinks).Elem().Field(n).Set(reflect.ValueOf(to[n]))
	}
	m := qs.Define[lendingInput[Sinks], msgpack.RawMessage](k.method, qs.WithCodec(codec.Msgpack))
	return m.Call(ctx, peer, in)
}

// newSource returns a Source for f. The kind of Source depends on what the file supports.
func newSource(f *os.File) qs.Source {
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && f != os.Stdin {
		return qs.File(f)
	}
	return qs.Reader(f)
}

// findField returns the index path of the input field that flag names.
func (d *methodDescription) findField(flag, name, kind string, all []typed.Field) ([]int, error) {
	var known []string
	for _, f := range all {
		if f.Name == name {
			return f.Path, nil
		}
		known = append(known, f.Name)
	}
	there := "it has none"
	if len(known) > 0 {
		there = "there are " + show.Text(strings.Join(known, ", "))
	}
	return nil, usageError{fmt.Sprintf("%s: %s has no %s %q; %s; NOT sent", flag, d.name, kind, name, there)}
}
