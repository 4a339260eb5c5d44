//go:build !unix

package bulk

import (
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A mapping is never made on these systems.
type mapping struct{}

func mapFile(*os.File, FileOptions) (mapping, []byte, error) {
	return mapping{}, nil, na.WithText(na.ErrUnsupported, "files cannot be mapped on this system: read the file into memory instead")
}

func (mapping) sync() error  { return nil }
func (mapping) unmap() error { return nil }
