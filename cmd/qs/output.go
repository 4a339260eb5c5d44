package main

import (
	"io"
	"sync"
)

// An output writes to standard output. It records the first write error, because the functions that print text do not
// check for errors.
type output struct {
	to io.Writer

	mu  sync.Mutex // guards err
	err error
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (n int, err error) {
	n, err = o.to.Write(b)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// failure returns the first write error, if any.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
