package main

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// shard 0: ["mercury is the first planet"]
	// shard 1: ["earth is the third planet" "mars is the fourth planet"]
	// shard 2: []
	// shard 3: unreachable, the request did not run
	// together: 3 lines
	// first: [jupiter is the fifth] <nil>
}

func TestMain(m *testing.M) { leak.Main(m) }
