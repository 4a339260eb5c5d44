package archtest

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPathOfACall checks that every function that the page on the path of a call names is in the
// file that it names.
func TestPathOfACall(t *testing.T) {
	page, err := os.ReadFile("../../../docs/internals/CALL.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`([\\w/]+\\.go): (\\w+)`").FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(named), 20)
	for _, n := range named {
		text, err := os.ReadFile("../../../" + n[1])
		require.NoError(t, err)
		require.Regexp(t, `(?m)^func (\(\w+ \*?\w+(\[\w+\])?\) )?`+n[2]+`\(`, string(text), "%s: %s", n[1], n[2])
	}
}
