package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output: hello, Ada
}

func TestNothingIsLeft(t *testing.T) {
	main()
}

func TestMain(m *testing.M) { leak.Main(m) }
