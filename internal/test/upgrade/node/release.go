//go:build !quicksilver_next

package main

import "github.com/quicksilver-rpc/quicksilver/internal/test/upgrade"

// A question is the input of echo.
type question struct {
	N    uint64
	Data []byte
}

// An answer is the output of echo.
type answer struct {
	N    uint64
	Data []byte
}

func reply(in question) answer { return answer(in) }

// addLater reports the additions of a later release that were received.
func addLater(*upgrade.Report) {}
