package qs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Requests and responses carry metadata about the definition of the method, so that differences
// between the definitions of the two sides are detected before the handler runs and before data is
// transferred.
//
//   - The streams of a request are those of its items, which must match those of the method,
//     followed by one for each Reader and Writer.
//   - lentMeta is in a request. It contains the names of the input fields with tickets, by ticket
//     number. The server refuses the request unless it finds all of them.
//   - filledMeta is in the response if a Sink was lent. It contains how far each Sink with a ticket
//     was filled, by ticket number.
//
// The encoding of the input and the output does not depend on this metadata.
const (
	lentMeta   = "qs-lent"
	filledMeta = "qs-filled"
)

// maxFieldName is the maximum length in bytes of a field name in metadata. Longer names are
// truncated, because they are used only in error texts.
const maxFieldName = 24

// A lentInput is the input of an attempt, whose Sources and Sinks encode as tickets.
type lentInput struct {
	in any
	l  *loanSet
}

// A methodCodec is the codec of a method. It also encodes inputs with Sources and Sinks, and it
// compares the fields of a received value with those of the local type.
type methodCodec struct {
	codec.Codec
	fields codec.FieldChecker // Codec as a FieldChecker; nil if it is not one
	both   fieldDecoder       // Codec as a fieldDecoder; nil if it is not one
}

// A fieldDecoder is a codec that decodes a value and compares its fields in one step.
type fieldDecoder interface {
	DecodeSent(b []byte, v any) error     // Decode, then CheckUnknown
	DecodeAnswered(b []byte, v any) error // Decode, then CheckMissing
}

// Append implements codec.Codec. It fails if the codec omitted a ticket, because a Source or a Sink
// would be lost.
func (c methodCodec) Append(dst []byte, v any) ([]byte, error) {
	in, ok := v.(*lentInput)
	if !ok {
		return c.Codec.Append(dst, v)
	}
	out, err := c.Codec.Append(dst, in.in)
	if err != nil {
		return dst, err
	}
	for _, t := range in.l.tickets {
		if !t.encodedOnce.Load() {
			return dst, hg.Errorf(hg.ErrUnsupported,
				"codec %s does not encode the Source or Sink in %s of %T; "+
					"use codec.Msgpack, and no tag that omits the field",
				c.Name(), t.field, in.in)
		}
	}
	return out, nil
}

// Decode implements codec.Codec.
func (c methodCodec) Decode(b []byte, v any) error {
	switch v := v.(type) {
	case *decodedInput:
		return c.decodeSent(b, v.in)
	case *decodedOutput:
		return c.decodeAnswered(b, v.decodeTarget)
	}
	return c.Codec.Decode(b, v)
}

// A decodedInput is a request whose input is being decoded, and a decodedOutput is a call whose
// response is being decoded. Decode selects the comparison of fields by these types.
type (
	decodedInput  request
	decodedOutput outgoingCall
)

// The caller's definition is authoritative. If a server skipped an unknown field of the input, it
// would ignore a part of the request. If an output lacked a field that the caller reads, the field
// would look like a zero value. Both are errors. Fields that only the server has are harmless: they
// are zero in the input, and are skipped in the output.

// decodeSent decodes an input or item sent by the caller. It fails if v lacks a field that was
// sent.
func (c methodCodec) decodeSent(b []byte, v any) error {
	if c.both != nil {
		return c.both.DecodeSent(b, v)
	}
	err := c.Codec.Decode(b, v)
	if err == nil && c.fields != nil {
		err = c.fields.CheckUnknown(b, v)
	}
	return err
}

// decodeAnswered decodes an output or item sent by the server. It fails if a field of v was not
// sent.
func (c methodCodec) decodeAnswered(b []byte, v any) error {
	if c.both != nil {
		return c.both.DecodeAnswered(b, v)
	}
	err := c.Codec.Decode(b, v)
	if err == nil && c.fields != nil {
		err = c.fields.CheckMissing(b, v)
	}
	return err
}

// resolveCodec returns the codec of m at n.
func (n *Node) resolveCodec(m *method) codec.Codec {
	switch {
	case m.o.codec != nil:
		return m.o.codec
	case n.cfg.HG.Codec != nil:
		return n.cfg.HG.Codec
	}
	return codec.Msgpack
}

// codecOf returns the codec of m at n as a methodCodec.
func (n *Node) codecOf(m *method) methodCodec {
	c := n.resolveCodec(m)
	fields, _ := c.(codec.FieldChecker)
	both, _ := c.(fieldDecoder)
	return methodCodec{c, fields, both}
}

// requestMeta returns m, the metadata of a request, with the field names of the tickets added.
func (l *loanSet) requestMeta(m hg.Metadata) (_ hg.Metadata, err error) {
	if len(l.tickets) == 0 {
		return m, nil
	}
	names := make([]string, len(l.tickets))
	for i, t := range l.tickets {
		names[i] = t.field[:min(len(t.field), maxFieldName)]
	}
	return m.WithOwn(lentMeta, strings.Join(names, ","))
}

// A sinkFill describes which bytes of a Sink have been written.
type sinkFill struct {
	prefix int64 // number of contiguous bytes from the beginning
	end    int64 // offset after the last byte written
}

// takeAnswer reads the lengths of the Sinks from the metadata of a response.
func (l *loanSet) takeAnswer(m hg.Metadata) error {
	text, ok := m.Get(filledMeta)
	if !ok {
		return nil
	}
	for number := range strings.SplitSeq(text, ",") {
		prefix, end, gap := strings.Cut(number, ":")
		if !gap {
			end = prefix
		}
		var n sinkFill
		var err, err2 error
		n.prefix, err = strconv.ParseInt(prefix, 10, 64)
		n.end, err2 = strconv.ParseInt(end, 10, 64)
		if err != nil || err2 != nil {
			return fmt.Errorf("qs: method %s: malformed Sink lengths %q in the response: %w", l.m.name, text,
				na.ErrProtocol)
		}
		l.filled = append(l.filled, n)
	}
	return nil
}

// checkAgreement returns an error if the caller has defined m as another kind of method. It must be
// called before the input is decoded.
func (m *method) checkAgreement(r hg.Request) error {
	theirs := r.Streams()
	if i := slices.IndexFunc(theirs, func(s hg.StreamSpec) bool { return s.Bulk }); i >= 0 {
		theirs = theirs[:i] // the remaining streams belong to tickets in the input
	}
	if !slices.Equal(theirs, m.streams) {
		return hg.Errorf(na.ErrProtocol,
			"method %s is defined as %s by the caller, and as %s by the server", m.name,
			kindOf(theirs), kindOf(m.streams))
	}
	return nil
}

// kindOf describes the kind of method that has the given item streams.
func kindOf(specs []hg.StreamSpec) string {
	switch {
	case len(specs) == 0:
		return "a method (Define)"
	case slices.Equal(specs, streamDown):
		return "a stream (DefineStream)"
	case slices.Equal(specs, streamUp):
		return "an upload (DefineUpload)"
	case slices.Equal(specs, streamBoth):
		return "a duplex (DefineDuplex)"
	}
	return fmt.Sprintf("a method with %d streams", len(specs))
}

// streamDown specifies the streams of a method that sends items to its caller.
var streamDown = []hg.StreamSpec{{}}

// lentFields returns the field names of a request's tickets, by ticket number.
func lentFields(meta hg.Metadata) (names []string) {
	if text, ok := meta.Get(lentMeta); ok {
		names = strings.Split(text, ",")
	}
	return names
}

// addFieldName adds the name of the field to an otherTicketError. It returns other errors
// unchanged.
func addFieldName(meta hg.Metadata, err error) error {
	if e, ok := errors.AsType[*otherTicketError](err); ok {
		if names := lentFields(meta); e.number < len(names) {
			return fmt.Errorf("%s: %w", names[e.number], err)
		}
	}
	return err
}

// checkTickets returns an error unless the decoded input contains all tickets that the caller sent.
func (m *method) checkTickets(meta hg.Metadata, lent []lentField) error {
	names := lentFields(meta)
	taken := make([]bool, len(names))
	for i := range lent {
		t := lent[i].ticket()
		if t == nil {
			continue
		}
		n := t.number
		if n >= len(names) || taken[n] {
			return hg.Errorf(hg.ErrBadInput, "the input of %s has an invalid ticket: number %d of %d", m.name, n,
				len(names))
		}
		taken[n] = true
	}
	n := slices.Index(taken, false)
	if n < 0 {
		return nil
	}
	has := "has no Source and no Sink"
	if len(m.fields) > 0 {
		var fields []string
		for _, f := range m.fields {
			fields = append(fields, f.name)
		}
		has = "has " + strings.Join(fields, ", ")
	}
	return hg.Errorf(hg.ErrBadInput, "the input of %s lacks the caller's field %q: at the server it %s",
		m.name, names[n], has)
}

// filledSinks returns the value of filledMeta for the Sinks of s, or "" if there are none.
func (s *request) filledSinks() string {
	var sinks []*lentField
	for i := range s.lent {
		if f := &s.lent[i]; f.sink != nil {
			sinks = append(sinks, f)
		}
	}
	slices.SortFunc(sinks, func(a, b *lentField) int { return a.sink.number - b.sink.number })
	texts := make([]string, len(sinks))
	for i, f := range sinks {
		if texts[i] = strconv.FormatInt(f.filled.prefix, 10); f.filled.end != f.filled.prefix {
			texts[i] += ":" + strconv.FormatInt(f.filled.end, 10)
		}
	}
	return strings.Join(texts, ",")
}
