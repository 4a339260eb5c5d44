package pathcost

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadProfile(t *testing.T) {
	p, err := readProfile(strings.NewReader("mode: atomic\nm/a.go:9.2,10.3 1 5\nm/a.go:2.30,4.5 2 7\nm/b.go:1.1,1.9 1 0\n"))
	require.NoError(t, err)
	require.Equal(t, profile{"m/a.go": {{position{2, 30}, 7}, {position{9, 2}, 5}}, "m/b.go": {{position{1, 1}, 0}}}, p)
	for _, line := range []string{"m/a.go", "m/a.go:1.2,3.4 5", "m/a.go:1.2,3.4 5 x"} {
		_, err = readProfile(strings.NewReader("mode: atomic\n" + line))
		require.ErrorContains(t, err, `not a line of a profile: "`+line+`"`)
	}
}
