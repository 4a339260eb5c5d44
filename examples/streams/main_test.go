package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// count: 1
	// count: 2
	// count: 3
	// sum: total 10 <nil>
	// talk: HELLO! <nil>
	// talk: GOODBYE! <nil>
	// talk: the handler has returned: true
}

func TestMain(m *testing.M) { leak.Main(m) }
