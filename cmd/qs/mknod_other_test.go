//go:build unix && !linux

package main

import "errors"

func mknod(string) error { return errors.ErrUnsupported }
