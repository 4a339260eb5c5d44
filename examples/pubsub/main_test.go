package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// news 0 one
	// news 1 two
	// the first server stops
	// news 2 three
}

func TestMain(m *testing.M) { leak.Main(m) }
