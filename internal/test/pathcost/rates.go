package pathcost

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// A profile has the blocks of each file, in the order of the text. A block is code that runs from
// its beginning to its end.
type profile map[string][]profileBlock

type profileBlock struct {
	at    position
	count float64 // how often it ran
}

// readProfile reads the output of go tool covdata textfmt.
func readProfile(r io.Reader) (profile, error) {
	p := profile{}
	lines := bufio.NewScanner(r)
	lines.Scan() // mode: atomic
	for lines.Scan() {
		file, b, err := parseBlock(lines.Text())
		if err != nil {
			return nil, err
		}
		p[file] = append(p[file], b)
	}
	for _, blocks := range p {
		slices.SortFunc(blocks, func(a, b profileBlock) int { return cmp.Or(a.at.compare(b.at), cmp.Compare(b.count, a.count)) })
	}
	return p, lines.Err()
}

// parseBlock parses a line such as "example.org/m/file.go:12.34,15.2 3 1000": from, to, statements,
// count.
func parseBlock(line string) (file string, b profileBlock, err error) {
	i := strings.LastIndexByte(line, ':')
	fields := strings.FieldsFunc(line[i+1:], func(r rune) bool { return r == '.' || r == ',' || r == ' ' })
	if i < 0 || len(fields) != 6 {
		return "", b, fmt.Errorf("not a line of a profile: %q", line)
	}
	var n [6]int
	for i, f := range fields {
		n[i], err = strconv.Atoi(f)
		if err != nil {
			return "", b, fmt.Errorf("not a line of a profile: %q", line)
		}
	}
	return line[:i], profileBlock{position{n[0], n[1]}, float64(n[5])}, nil
}

// countCosts returns the costs of a call in a round.
func countCosts(code []*function, p profile, calls int) costs {
	c := costs{}
	for _, f := range code {
		blocks := p[f.file]
		entered := countAt(blocks, f, f.from) / float64(calls)
		c.add(functions, f.name, entered)
		c.add(varying, f.name, entered)
		for _, s := range f.sites {
			c.add(s.figure, f.name, countAt(blocks, f, s.at)/float64(calls))
		}
	}
	return c
}

// countAt returns how often the block of f that contains a position ran.
func countAt(blocks []profileBlock, f *function, at position) float64 {
	i := sort.Search(len(blocks), func(i int) bool { return blocks[i].at.compare(at) > 0 })
	for i--; i >= 0 && blocks[i].at.compare(f.from) >= 0; i-- {
		if !f.isInLiteral(blocks[i].at) {
			return blocks[i].count
		}
	}
	return 0
}

// isInLiteral reports whether a position is in a function literal of f.
func (f *function) isInLiteral(at position) bool {
	return slices.ContainsFunc(f.literals, func(l *function) bool { return l.from.compare(at) <= 0 && at.compare(l.to) <= 0 })
}
