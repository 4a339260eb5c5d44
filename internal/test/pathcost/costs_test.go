package pathcost

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeast(t *testing.T) {
	a := costs{functions: {"a": 1, "b": 2}, varying: {"a": 1, "b": 2}, locks: {"a": 1}, frames: {"a": 2, "b": 2}}
	b := costs{functions: {"a": 3, "c": 1}, varying: {"a": 3, "c": 1}, frames: {"c": 3}}
	want := costs{functions: {"a": 1}, varying: {"a": 3, "b": 2, "c": 1}, frames: {"a": 2, "b": 2}}
	require.Equal(t, want, minCosts(a, b))
	require.Equal(t, want, minCosts(b, a))
	require.Equal(t, costs{functions: {"a": 1}, varying: {"b": 1, "c": 1}, frames: {"a": 2, "b": 2}}, want.withoutVarying())
}

func TestSteady(t *testing.T) {
	raw := costs{
		functions: {"always": 1, "often": 7, "half": 0.5, "seldom": 0.4, "never": 0.1},
		varying:   {"always": 1, "often": 9, "half": 0.5, "seldom": 1, "never": 0.1},
		locks:     {"always": 1.996, "seldom": 0.26, "never": 0.04},
	}
	require.Equal(t, costs{
		functions: {"always": 1, "often": 1, "half": 1},
		varying:   {"seldom": 1},
		locks:     {"always": 2, "seldom": 0.3},
	}, raw.withoutVarying())
}
