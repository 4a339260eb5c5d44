package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
)

func Example() {
	main()
	// Output: hello, Ada
}

func TestNothingIsLeft(t *testing.T) {
	leak.Check(t)
	main()
}
