package qs

import (
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// An AnyMethod is what Define, DefineStream, DefineUpload, DefineDuplex and DefineOneWay return.
type AnyMethod interface {
	Name() string
	definition() *method
}

func (m *Method[In, Out]) definition() *method      { return m.m }
func (m *OneWay[In]) definition() *method           { return m.m }
func (s *Stream[In, Item]) definition() *method     { return s.m }
func (u *Upload[In, Up, Out]) definition() *method  { return u.m }
func (d *Duplex[In, Up, Down]) definition() *method { return d.m }

// Schema describes methods as a text that can be committed, and reviewed when it changes: kind, codec and types of each, in the order of
// their names; then the error codes that the process has defined with DefineCode, number and name. The codec of one without WithCodec is msgpack, whatever a node's Config.HG.Codec is. Of methods with one name the last one
// counts. docs/EVOLUTION.md says what a change does to programs that have not changed; qstest.Compatible compares the text with a file.
func Schema(methods ...AnyMethod) string {
	byName := map[string]int{}
	var all []schema.Method
	for _, m := range methods {
		d := m.definition()
		c := d.o.codec
		if c == nil {
			c = codec.Msgpack
		}
		is := schema.Method{Name: d.name, Codec: c.Name(), Signature: d.signature}
		if i, ok := byName[d.name]; ok {
			all[i] = is
			continue
		}
		byName[d.name] = len(all)
		all = append(all, is)
	}
	return schema.Format(schema.Program{Methods: all, Codes: hg.CodeNames()})
}
