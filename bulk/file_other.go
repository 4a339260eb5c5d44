//go:build !unix

package bulk

import (
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// mapping is unused on systems without support for memory-mapped files.
type mapping struct{}

func mapFile(*os.File, FileOptions) (mapping, []byte, error) {
	return mapping{}, nil, na.WithText(na.ErrUnsupported, "memory-mapped files are not supported on this system")
}

func (mapping) sync() error  { return nil }
func (mapping) unmap() error { return nil }
