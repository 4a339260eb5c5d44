package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// get earth: third <nil>
	// get pluto: not found: true - the request ran
	// put mars: quota used up 90 of 100
	// put at the other server: no such method: true - the request did not run
	// put slow: canceled: true - the request may have run
}

func TestMain(m *testing.M) { leak.Main(m) }
