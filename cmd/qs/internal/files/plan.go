package files

import (
	"context"
	"fmt"
	"path"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A plan lists the directories and files to copy. A directory precedes its entries.
type plan struct {
	dirs    []step
	files   []step
	bytes   int64
	skipped []string // descriptions of the entries that are neither files nor directories
}

// A step is a file or directory to copy, with its paths at the source and at the destination.
type step struct {
	from, to string
	stamp    stamp
	holes    int64 // number of bytes that are not stored on the source's disk
}

// maxPath is the maximum length of a path in a plan, in bytes, which also limits the depth of directories. maxEntries
// is the maximum number of entries in a plan, so that a target whose listings never end cannot exhaust the memory.
// Tests replace maxEntries.
const maxPath = 4096

var maxEntries = 1 << 23

// makePlan returns a plan for copying from, a path in src, to the path to in dst.
//
// A file is copied to the path to or, if into is true or to is an existing directory, into that directory under its own
// name. A directory is copied to the path to or, if into is true, into that directory under its own name. The result
// does not depend on data left by an interrupted run.
func makePlan(ctx context.Context, src, dst store, from, to string, into bool) (*plan, error) {
	e, err := src.stat(ctx, from)
	if err != nil {
		return nil, err
	}
	p := &plan{}
	switch e.Kind {
	case missing:
		return nil, fmt.Errorf("%s: %w", from, ErrNoSource)
	case special, link:
		return nil, fmt.Errorf("%s is neither a file nor a directory: %w", from, na.ErrInvalid)
	case directory:
		if into && path.Base(from) != "." {
			to = path.Join(to, path.Base(from))
		}
		return p, p.addDir(ctx, src, step{from, to, e.Stamp, e.Holes})
	}
	if !into {
		there, err := dst.stat(ctx, to)
		if err != nil {
			return nil, err
		}
		into = there.Kind == directory
	}
	if into {
		p.dirs = append(p.dirs, step{to: to, stamp: stamp{Mode: 0o777}})
		to = path.Join(to, path.Base(from))
	}
	p.addFile(step{from, to, e.Stamp, e.Holes})
	return p, nil
}

func (p *plan) addFile(s step) {
	p.files = append(p.files, s)
	p.bytes += s.stamp.Size
}

func (p *plan) addDir(ctx context.Context, src store, dir step) error {
	p.dirs = append(p.dirs, dir)
	for after := ""; ; {
		entries, err := src.list(ctx, dir.from, after)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, e := range entries {
			s := step{path.Join(dir.from, e.Name), path.Join(dir.to, e.Name), e.Stamp, e.Holes}
			if max(len(s.from), len(s.to)) > maxPath || len(p.files)+len(p.dirs)+len(p.skipped) >= maxEntries {
				return fmt.Errorf("%.100s: path exceeds %d bytes, or more than %d entries: %w", s.from, maxPath, maxEntries, na.ErrInvalid)
			}
			switch e.Kind {
			case regular:
				p.addFile(s)
			case directory:
				if err := p.addDir(ctx, src, s); err != nil {
					return err
				}
			case link:
				p.skipped = append(p.skipped, s.from+" is a symbolic link")
			default:
				p.skipped = append(p.skipped, s.from+" is neither a file nor a directory")
			}
			after = e.Name
		}
	}
}
