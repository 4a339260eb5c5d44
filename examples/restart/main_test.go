//go:build unix

package main

import (
	"os"
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func Example() {
	main()
	// Output:
	// before: first <nil>
	// then: second <nil>
	// a call that was under way: first <nil>
}

func TestMain(m *testing.M) {
	if os.Getenv(generationEnv) != "" { // a server that the example has started
		main()
		return
	}
	leak.Main(m)
}
