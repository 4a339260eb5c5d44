package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A location is an argument of qs cp: a path on this machine or below a target's root.
//
//	tcp://10.0.0.7:9000/data/big.bin     addr is tcp://10.0.0.7:9000, path is data/big.bin
//
// The first slash after :// ends the address. The rest is the path, which is used unchanged.
type location struct {
	addr      string // "" for this machine
	path      string
	isStdio   bool // the argument is -, which means standard input or output
	isIntoDir bool // the argument ends with /: files are copied into this directory
}

var remoteLocation = regexp.MustCompile(`^[a-z][a-z0-9+.-]*://`)

func parseLocation(text string) (location, error) {
	if text == "" {
		return location{}, usageError{"empty path"}
	}
	if text == "-" {
		return location{path: text, isStdio: true}, nil
	}
	if !remoteLocation.MatchString(text) {
		if strings.HasPrefix(text, "tcp:") || strings.HasPrefix(text, "udp:") || strings.HasPrefix(text, "sm:") || strings.Contains(text, "://") {
			return location{}, usageError{fmt.Sprintf("%q is neither a path nor an address; write tcp://HOST:PORT/PATH, or ./%s", text, text)}
		}
		return location{path: text, isIntoDir: os.IsPathSeparator(text[len(text)-1])}, nil
	}
	scheme, rest, _ := strings.Cut(text, "://")
	host, path, found := strings.Cut(rest, "/")
	if !found {
		return location{}, usageError{fmt.Sprintf("%q has no path; write %s/PATH, and %[2]s/ for the root of the target", text, text)}
	}
	p := location{addr: scheme + "://" + host, path: path, isIntoDir: path == "" || strings.HasSuffix(path, "/")}
	if _, err := parseAddr(p.addr); err != nil {
		return location{}, usageError{fmt.Sprintf("%q: %v", text, err)}
	}
	if p.path == "" {
		p.path = "."
	}
	return p, nil
}

func (p location) String() string {
	switch {
	case p.addr == "":
		return p.path
	case p.path == ".":
		return p.addr + "/"
	}
	return p.addr + "/" + p.path
}

// resolve returns the folder that contains a local path, and the file's name within that folder. It follows symbolic
// links in the folder's path. For a source, it also follows a symbolic link with that name.
func (p location) resolve(source bool) (folder, name string, err error) {
	full, err := filepath.Abs(p.path)
	if err == nil && source {
		full, err = filepath.EvalSymlinks(full)
	}
	if err != nil {
		return "", "", err
	}
	return filepath.Dir(full), filepath.Base(full), nil
}
