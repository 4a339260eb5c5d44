package quicksilver

import (
	"errors"
	"os"

	"github.com/quicksilver-rpc/quicksilver/bulk"
)

// WithoutMapping has files not be mapped while f runs.
func WithoutMapping(f func()) {
	was := mapFile
	defer func() { mapFile = was }()
	mapFile = func(*os.File, bulk.FileOptions) (*bulk.File, error) { return nil, errors.ErrUnsupported }
	f()
}
