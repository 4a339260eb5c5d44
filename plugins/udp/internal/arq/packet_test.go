package arq

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWirePage checks that the kinds in docs/internals/WIRE.md are those of the code.
func TestWirePage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/internals/WIRE.md")
	require.NoError(t, err)
	for k := kindData; k <= kindReset; k++ {
		require.Contains(t, string(page), fmt.Sprintf("|%v|%d|", k, k))
	}
}
