//go:build !unix

package soak

import (
	"errors"
	"os"
)

func stopProcess(*os.Process) error   { return errors.ErrUnsupported }
func resumeProcess(*os.Process) error { return errors.ErrUnsupported }
