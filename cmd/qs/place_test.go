package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlace(t *testing.T) {
	for text, want := range map[string]location{
		"f":                          {path: "f"},
		"/a/b ":                      {path: "/a/b "},
		"dir/":                       {path: "dir/", isIntoDir: true},
		"./tcp":                      {path: "./tcp"},
		"tcp://h:1/":                 {addr: "tcp://h:1", path: ".", isIntoDir: true},
		"tcp://h:1/f":                {addr: "tcp://h:1", path: "f"},
		"tcp://h:1/a b/ü:c":          {addr: "tcp://h:1", path: "a b/ü:c"},
		"tcp://h:1/d/":               {addr: "tcp://h:1", path: "d/", isIntoDir: true},
		"tcp://[::1]:9000#2/x":       {addr: "tcp://[::1]:9000#2", path: "x"},
		"tcp://h:1//etc/passwd":      {addr: "tcp://h:1", path: "/etc/passwd"},
		"tcp://h:1/tcp://h:2/%20?#!": {addr: "tcp://h:1", path: "tcp://h:2/%20?#!"},
	} {
		got, err := parseLocation(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for text, want := range map[string]string{
		"":                 "empty path",
		"tcp://h:1":        "has no path; write tcp://h:1/PATH, and tcp://h:1/ for the root of the target",
		"tcp:h:1/x":        "write tcp://HOST:PORT/PATH, or ./tcp:h:1/x",
		"TCP://h:1/x":      "is neither a path nor an address",
		"tcp:///x":         "missing host",
		"tcp://a b/x":      "space or control character",
		"tcp://h:1#none/x": `target id is "none", want`,
	} {
		_, err := parseLocation(text)
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, &usageError{})
	}
}
