package yokan_test

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
)

// TestDouble plays every operation, in both encodings and with both ways of the data.
func TestDouble(t *testing.T) {
	t.Run("0.10", testDouble[head010])
	t.Run("0.9", testDouble[head009])
}

func testDouble[H requestHead](t *testing.T) {
	_, db := openDouble[H](t, yokan.Config{})
	for name, mode := range ways {
		t.Run(name, func(t *testing.T) { testOperations(t, db, mode) })
	}
	t.Run("errors", func(t *testing.T) { testFailures(t, db) })
	t.Run("segments", func(t *testing.T) { testSegments(t, db, 10_000) })
	t.Run("load", func(t *testing.T) { testLoad(t, db) })
}
