package mutant

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A replacement is a part of a file that is replaced.
type replacement struct {
	begin, end int
	text       string
	mutant     string
}

// Overlay writes every file that a mutant changes, with all mutants in it, to dir, and returns the
// name of the file in dir that is for go's flag -overlay. root is where the module is.
func Overlay(root, dir string) (string, error) {
	pieces, text := map[string][]replacement{}, map[string]string{}
	var wrong []error
	for _, m := range append(All(), Mutant{Name: "harness", Edits: harnessEdits}) {
		for _, e := range m.Edits {
			if text[e.File] == "" {
				b, err := os.ReadFile(filepath.Join(root, e.File))
				if err != nil {
					wrong = append(wrong, fmt.Errorf("%s: %w", m.Name, err))
					continue
				}
				text[e.File] = string(b)
			}
			if n := strings.Count(text[e.File], e.Anchor); n != 1 {
				wrong = append(wrong, fmt.Errorf("%s: the anchor occurs %d times in %s, not once: %s", m.Name, n, e.File, e.Anchor))
				continue
			}
			at := strings.Index(text[e.File], e.Anchor)
			with := strings.ReplaceAll(e.With, "planted()", fmt.Sprintf("planted.Is(%q)", m.Name))
			pieces[e.File] = append(pieces[e.File], replacement{at, at + len(e.Anchor), strings.ReplaceAll(with, "$", e.Anchor), m.Name})
		}
	}
	if len(wrong) > 0 {
		return "", errors.Join(wrong...)
	}
	replace := map[string]string{}
	for file := range pieces {
		b, err := applyEdits(text[file], pieces[file])
		if err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		from, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			return "", err
		}
		to, err := filepath.Abs(filepath.Join(dir, strings.ReplaceAll(file, "/", "-")))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(to, b, 0o666); err != nil {
			return "", err
		}
		replace[from] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, b, 0o666)
}

var clause = regexp.MustCompile(`(?m)^package \w+$`)

// applyEdits returns a file with all its pieces replaced, which must not overlap.
func applyEdits(text string, pieces []replacement) ([]byte, error) {
	slices.SortFunc(pieces, func(a, b replacement) int { return cmp.Compare(a.begin, b.begin) })
	var b strings.Builder
	at := 0
	for i, p := range pieces {
		if p.begin < at {
			return nil, fmt.Errorf("%s and %s change the same lines", pieces[i-1].mutant, p.mutant)
		}
		b.WriteString(text[at:p.begin])
		b.WriteString(p.text)
		at = p.end
	}
	b.WriteString(text[at:])
	whole := b.String()
	if strings.Contains(whole, "planted.") {
		whole = clause.ReplaceAllString(whole, "$0\n\nimport \"github.com/quicksilver-rpc/quicksilver/internal/test/mutant/planted\"")
	}
	return format.Source([]byte(whole))
}
