//go:build !quicksilver_next

package main

import "github.com/quicksilver-rpc/quicksilver/internal/test/upgrade"

// A question is the input of echo.
type question struct {
	N    uint64
	Data []byte
}

// An answer is what echo returns.
type answer struct {
	N    uint64
	Data []byte
}

func reply(in question) answer { return answer(in) }

// addLater reports what has come of the new things of a later release.
func addLater(*upgrade.Report) {}
