package ring

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoldenSegment checks the front of a segment, its length and a descriptor as release 0.1.0 has
// written them. Magic, form and length never change their places; the rest belongs to version 5.
func TestGoldenSegment(t *testing.T) {
	g := Geometry{Envelopes: 33, Eager: 4096, Version: 5}
	require.Equal(t, 163_840, g.Size())
	own := make(memory, g.Size())
	e := New(own, g)
	require.Equal(t, "515549"+"53534d3031"+"05000000"+"80000000"+"0080020000000000", fmt.Sprintf("%x", []byte(own[:24])))
	e.Put(Messages, &Message{Kind: 2, Flags: 1, Op: 7, Tag: 8, Credit: 9, Len: 3}, []byte("abc"))
	e.Publish()
	require.Equal(t, "0300020201000000"+"0700000000000000"+"0800000000000000"+"09000000"+"40000000"+"616263", fmt.Sprintf("%x", []byte(own.desc(offMessages, 0)[:35])))
}

// TestOtherSegment checks that a segment of another version, or of other sizes than it should have,
// is not read.
func TestOtherSegment(t *testing.T) {
	g := Geometry{Envelopes: 2, Eager: 256, Version: Version}
	for _, off := range []int{offMagic, offForm, offForm + 4, offLength} {
		peer := make(memory, g.Size())
		New(peer, g)
		require.NoError(t, New(make(memory, g.Size()), g).Join(peer, g))
		peer[off]++
		require.ErrorIs(t, New(make(memory, g.Size()), g).Join(peer, g), ErrBroken, "byte %d", off)
	}
}
