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

// Beside input and output, requests and answers carry as metadata what the two sides have to agree about. So two programs that define a
// method otherwise find out before the handler runs, and never exchange half of the data:
//
//	request: streams                            of items first: a method refuses them, and a stream what comes without them; then one for each Reader and Writer
//	         qs-lent      fields                those of the tickets in the input, by their numbers: the target finds all of them, or refuses
//	answer:  qs-filled    how far each Sink with a ticket is filled, by their numbers; only to a request that has lent a Sink
//
// The input and the output themselves have the same encoding whatever is lent.
const (
	lentMeta   = "qs-lent"
	filledMeta = "qs-filled"
)

// maxFieldName bounds a field's name in metadata, in bytes: it is for people.
const maxFieldName = 24

// A lentInput is the input of an attempt, in which Sources and Sinks can be encoded.
type lentInput struct {
	in any
	l  *loanSet
}

// A methodCodec is the codec of a method: it encodes also inputs with Sources and Sinks, and compares the fields of what it decodes with
// those of the receiver's type.
type methodCodec struct{ codec.Codec }

// Append refuses an input whose encoding does not have all that it lends.
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
			return dst, hg.Errorf(hg.ErrUnsupported, "codec %s does not encode %s of %T, which lends something: it leaves the field out, "+
				"or does not call MarshalBinary; use codec.Msgpack, and no tag that leaves the field out", c.Name(), t.field, in.in)
		}
	}
	return out, nil
}

// Decode decodes an input, an output or anything else.
func (c methodCodec) Decode(b []byte, v any) error {
	switch v := v.(type) {
	case *decodedInput:
		return decodeSent(c.Codec, b, v.in)
	case *decodedOutput:
		return decodeAnswered(c.Codec, b, v.decodeTarget)
	}
	return c.Codec.Decode(b, v)
}

// An decodedInput is a request whose input is decoded, and an decodedOutput a call whose answer is.
type (
	decodedInput  request
	decodedOutput outgoingCall
)

// What the caller says counts. A target that does not know all that it is sent would do less than it is asked for, and an answer without
// all that the caller reads would have zero values that nobody has said: both are errors. A field that the caller does not know is no
// loss to it: the target reads its zero value, and the caller skips what it has not asked for.

// decodeSent decodes what a caller has sent: an input, or an item.
func decodeSent(c codec.Codec, b []byte, v any) error {
	err := c.Decode(b, v)
	if checker, ok := c.(codec.FieldChecker); ok && err == nil {
		err = checker.CheckUnknown(b, v)
	}
	return err
}

// decodeAnswered decodes what a target has answered: an output, or an item.
func decodeAnswered(c codec.Codec, b []byte, v any) error {
	err := c.Decode(b, v)
	if checker, ok := c.(codec.FieldChecker); ok && err == nil {
		err = checker.CheckMissing(b, v)
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

// codecOf returns the codec that m is registered with at n.
func (n *Node) codecOf(m *method) codec.Codec { return methodCodec{n.resolveCodec(m)} }

// requestMeta returns the metadata of a request: m, and what the target has to know.
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

// A sinkFill says how far a Sink was filled.
type sinkFill struct {
	prefix int64 // bytes from its beginning on, without gaps
	end    int64 // where the last byte that was written ends
}

// takeAnswer takes in what the metadata of an answer says of the Sinks.
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
			return fmt.Errorf("qs: method %s: the answer says %q of its Sinks: %w", l.m.name, text, na.ErrProtocol)
		}
		l.filled = append(l.filled, n)
	}
	return nil
}

// checkAgreement reports, before the input is decoded, whether the caller calls what m is.
func (m *method) checkAgreement(r hg.Request) error {
	theirs := r.Streams()
	if i := slices.IndexFunc(theirs, func(s hg.StreamSpec) bool { return s.Bulk }); i >= 0 {
		theirs = theirs[:i] // what follows is lent, and belongs to tickets of the input
	}
	if !slices.Equal(theirs, m.streams) {
		return hg.Errorf(na.ErrProtocol, "the caller defines %s as %s, and here it is %s: both sides need the same", m.name, kindOf(theirs), kindOf(m.streams))
	}
	return nil
}

// kindOf says what has such streams.
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
	return fmt.Sprintf("what has %d streams", len(specs))
}

var streamDown = []hg.StreamSpec{{}}

// lentFields returns the fields of what a request lends, by their numbers.
func lentFields(meta hg.Metadata) (names []string) {
	if text, ok := meta.Get(lentMeta); ok {
		names = strings.Split(text, ",")
	}
	return names
}

// addFieldName returns the error of a decoder with the field that it speaks of.
func addFieldName(meta hg.Metadata, err error) error {
	if e, ok := errors.AsType[*otherTicketError](err); ok {
		if names := lentFields(meta); e.number < len(names) {
			return fmt.Errorf("%s: %w", names[e.number], err)
		}
	}
	return err
}

// checkTickets reports whether the input here has taken all that the caller lends.
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
			return hg.Errorf(hg.ErrBadInput, "the input of %s has a ticket of number %d of %d", m.name, n, len(names))
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
	return hg.Errorf(hg.ErrBadInput, "the caller lends %q, which does not arrive: the input of %s here %s; both sides need the same field, and a codec that encodes it", names[n], m.name, has)
}

// filledSinks returns what the answer says of the Sinks of a request; "" if it has lent none.
func (s *request) filledSinks() string {
	var told []*lentField
	for i := range s.lent {
		if f := &s.lent[i]; f.sink != nil {
			told = append(told, f)
		}
	}
	slices.SortFunc(told, func(a, b *lentField) int { return a.sink.number - b.sink.number })
	texts := make([]string, len(told))
	for i, f := range told {
		if texts[i] = strconv.FormatInt(f.filled.prefix, 10); f.filled.end != f.filled.prefix {
			texts[i] += ":" + strconv.FormatInt(f.filled.end, 10)
		}
	}
	return strings.Join(texts, ",")
}
