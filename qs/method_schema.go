package qs

import (
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/schema"
)

// An AnyMethod is a Method, Stream, Upload, Duplex or OneWay.
type AnyMethod interface {
	Name() string
	definition() *method
}

func (m *Method[In, Out]) definition() *method      { return m.m }
func (m *OneWay[In]) definition() *method           { return m.m }
func (s *Stream[In, Item]) definition() *method     { return s.m }
func (u *Upload[In, Up, Out]) definition() *method  { return u.m }
func (d *Duplex[In, Up, Down]) definition() *method { return d.m }

// Schema returns a textual description of methods, intended to be committed and reviewed when it
// changes. It contains the kind, codec and types of each method, sorted by name, followed by the
// error codes that the process has defined with DefineCode. The codec of a method without WithCodec
// is given as msgpack, even if a node's Config.HG.Codec is set. If several methods have the same
// name, Schema describes the last one.
//
// See docs/EVOLUTION.md for the effect of changes on existing programs. Use qstest.Compatible to
// compare the text with a file.
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
