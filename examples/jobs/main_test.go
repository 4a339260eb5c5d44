package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output: SEVEN JOBS ARE DONE BY THESE WORKERS
}

func TestMain(m *testing.M) { leak.Main(m) }
