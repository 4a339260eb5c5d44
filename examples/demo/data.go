package main

import (
	"bytes"
	"fmt"
	"os"
)

// defaultSize is the minimum amount of data to offer if no file is specified.
const defaultSize = 64 << 20

// load reads the file or, if there is none, returns this program's binary, repeated.
func load(file string) ([]byte, error) {
	if file != "" {
		return os.ReadFile(file)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(self)
	return repeat(data, defaultSize), err
}

// repeat returns data repeated until it has at least atLeast bytes.
func repeat(data []byte, atLeast int) []byte {
	switch {
	case len(data) >= atLeast:
		return data
	case len(data) == 0:
		return make([]byte, atLeast)
	}
	return bytes.Repeat(data, (atLeast+len(data)-1)/len(data))
}

// size formats a number of bytes for users.
func size(n int) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}
