package na

import (
	"maps"
	"slices"
)

// Schemes returns the schemes of the plugins that are linked in, sorted.
func Schemes() []string {
	pluginsMu.Lock()
	defer pluginsMu.Unlock()
	return slices.Sorted(maps.Keys(plugins))
}
