package codec_test

import (
	"encoding/json"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
)

// A JSON is a codec of a program's own, for qs.WithCodec or hg.Config.Codec. Numbers from 128 on are for these.
type JSON struct{}

func (JSON) Name() string { return "json" }
func (JSON) ID() uint8    { return 200 }

func (JSON) Append(dst []byte, v any) ([]byte, error) {
	if v == nil {
		return dst, nil
	}
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (JSON) Decode(b []byte, v any) error {
	if v == nil {
		return nil
	}
	return json.Unmarshal(b, v)
}

func ExampleCodec() {
	for _, c := range []codec.Codec{codec.Msgpack, JSON{}} {
		b, err := c.Append(nil, map[string]int{"a": 1})
		if err != nil {
			panic(err)
		}
		var got map[string]int
		fmt.Println(c.Name(), len(b), c.Decode(b, &got), got)
	}
	// Output:
	// msgpack 4 <nil> map[a:1]
	// json 7 <nil> map[a:1]
}
