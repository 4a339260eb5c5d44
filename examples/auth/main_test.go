package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// 42 <nil>
	// another's account: denied: true
	// a wrong token: denied: true - did not run
	// a process that may not call: true - did not run
}

func TestMain(m *testing.M) { leak.Main(m) }
