package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadKeys checks that keys that are sequences are skipped, and the keys behind them are not.
func TestReadKeys(t *testing.T) {
	keys, done := make(chan rune), make(chan struct{})
	defer close(done)
	go readKeys(strings.NewReader("a\x1b[Ab\x1b[1;5Cc\x1bOPd\x1bxeé\x1b[3~\x03\x1b"), keys, done)
	var got []rune
	for key := range keys {
		got = append(got, key)
	}
	require.Equal(t, "abcdeé\x03\x1b", string(got))
}
