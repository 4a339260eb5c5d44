package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/quicksilver-rpc/quicksilver"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// The inputs of methods that take a Source, or a Sink too: in is an object, to which they are added under the names of their fields.
type (
	sourceInput struct {
		in     map[string]any
		name   string
		Source quicksilver.Source
	}
	sinkInput struct {
		sourceInput
		name string
		Sink quicksilver.Sink
	}
)

// EncodeMsgpack implements msgpack.CustomEncoder.
func (i sourceInput) EncodeMsgpack(e *msgpack.Encoder) error {
	if i.name != "" {
		i.in[i.name] = i.Source
	}
	return e.Encode(i.in)
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (i sinkInput) EncodeMsgpack(e *msgpack.Encoder) error {
	i.in[i.name] = i.Sink
	return i.sourceInput.EncodeMsgpack(e)
}

// callLending calls a method with what source and sink name, each FIELD=FILE or empty.
func (c *client) callLending(ctx context.Context, method string, in any, source, sink string) (out any, err error) {
	fields, ok := in.(map[string]any)
	if !ok {
		return nil, usageError{"-source and -sink are fields of the input, which must be a JSON object"}
	}
	peer, err := c.node.Peer(ctx, c.peer.String())
	if err != nil {
		return nil, err
	}
	i := sinkInput{sourceInput: sourceInput{in: fields}}
	if source != "" {
		from, err := openField("-source", source, &i.sourceInput.name, os.Open)
		if err != nil {
			return nil, err
		}
		defer from.Close()
		i.Source = quicksilver.From(from)
		if info, err := from.Stat(); err == nil && info.Mode().IsRegular() {
			i.Source = quicksilver.LendFile(from)
		}
	}
	o := quicksilver.Options{Codec: codec.Msgpack}
	if sink == "" {
		return quicksilver.DefineWith[sourceInput, any](method, o).Call(ctx, peer, i.sourceInput)
	}
	to, err := openField("-sink", sink, &i.name, os.Create)
	if err != nil {
		return nil, err
	}
	i.Sink = quicksilver.Into(to)
	out, err = quicksilver.DefineWith[sinkInput, any](method, o).Call(ctx, peer, i)
	return out, errors.Join(err, to.Close())
}

// openField opens the file of FIELD=FILE.
func openField(flag, text string, field *string, open func(string) (*os.File, error)) (*os.File, error) {
	name, file, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return nil, usageError{fmt.Sprintf("%s is %q, want FIELD=FILE: the field of the input, and the file that is lent in it", flag, text)}
	}
	*field = name
	return open(file)
}
