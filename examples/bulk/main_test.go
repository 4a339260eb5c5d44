package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
)

func TestBulk(t *testing.T) {
	leak.Check(t)
	var out strings.Builder
	run(&out)
	require.Equal(t, "3100000 bytes: ALL THAT GLITTERS IS NOT GOLD ...\nall of them right: true\n", out.String())
}
