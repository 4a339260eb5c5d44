package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// put memory: 8388608 <nil>
	// put a reader: 13 <nil>
	// put a file: 12 <nil>
	// get into memory: 8388608 8388608 true <nil>
	// get into a writer: 12 "from a file\n" <nil>
}

func TestMain(m *testing.M) { leak.Main(m) }
