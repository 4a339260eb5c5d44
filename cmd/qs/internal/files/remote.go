package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// separators lists the characters that a name must not contain: the slash and this system's
// separator.
const separators = "/" + string(os.PathSeparator)

// A remote is the store of files at a target.
type remote struct{ c *client }

var _ store = remote{}

func (r remote) stat(ctx context.Context, path string) (entry, error) {
	return callMethod(ctx, r.c, methodStat, pathRequest{path})
}

func (r remote) list(ctx context.Context, dir, after string) ([]entry, error) {
	reply, err := callMethod(ctx, r.c, methodList, listRequest{dir, after})
	for _, e := range reply.Entries {
		// The names become part of paths on this machine, so names from the target must be checked.
		if e.Name == "." || !filepath.IsLocal(e.Name) || strings.ContainsAny(e.Name, separators) || e.Name <= after {
			return nil, fmt.Errorf("%s: invalid entry %q in %s: %w", r.c.addr, e.Name, dir, na.ErrProtocol)
		}
		after = e.Name
	}
	return reply.Entries, err
}

func (r remote) mkdir(ctx context.Context, path string, mode uint32) error {
	_, err := callMethod(ctx, r.c, methodMkdir, mkdirRequest{path, mode})
	return err
}
