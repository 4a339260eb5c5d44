package pieces

import "io"

// A Reader is an io.Reader and an io.WriterTo. One goroutine at a time uses it.
type Reader struct {
	Check func() error           // says why nothing may be read any more, also of the piece that is there
	Next  func() ([]byte, error) // returns the next piece, and io.EOF after the last; not called again after an error
	rest  []byte
	err   error
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.fetch(); err != nil {
		return 0, err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// WriteTo implements io.WriterTo: from the pieces, without a copy.
func (r *Reader) WriteTo(to io.Writer) (total int64, err error) {
	for {
		if err := r.fetch(); err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := to.Write(r.rest)
		if err == nil && n < len(r.rest) {
			err = io.ErrShortWrite
		}
		r.rest = r.rest[n:]
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// fetch waits until there is something in rest.
func (r *Reader) fetch() error {
	if err := r.Check(); err != nil {
		return err
	}
	if len(r.rest) == 0 && r.err == nil {
		r.rest, r.err = r.Next()
	}
	return r.err
}

// A Writer is an io.Writer and an io.ReaderFrom. One goroutine at a time uses it.
type Writer struct {
	Room func() ([]byte, error) // returns where the next bytes go; nothing when no more can be taken
	Add  func(n int) error      // is told that so many bytes of that were filled
	Full func() error           // is the error of a byte more than can be taken
	Skip func()                 // is called instead of Add when nothing was filled, though a Read has panicked; may be nil
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		room, err := w.Room()
		if err != nil {
			return n, err
		}
		if len(room) == 0 {
			return n, w.Full()
		}
		k := copy(room, p)
		if err := w.Add(k); err != nil {
			return n, err
		}
		p = p[k:]
		n += k
	}
	return n, nil
}

// maxEmptyReads is how often in a row a Read may give nothing and no error.
const maxEmptyReads = 100

// ReadFrom implements io.ReaderFrom: straight into the pieces.
func (w *Writer) ReadFrom(from io.Reader) (total int64, err error) {
	for empty := 0; empty < maxEmptyReads; empty++ {
		room, err := w.Room()
		if err != nil {
			return total, err
		}
		full := len(room) == 0
		if full {
			room = make([]byte, 1) // is that the end, too?
		}
		n, err := w.read(from, room, full)
		if n > 0 && full {
			return total, w.Full()
		}
		if n > 0 {
			empty = 0
			if err := w.Add(n); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	return total, io.ErrNoProgress
}

// read reads into room, and skips it if nothing came.
func (w *Writer) read(from io.Reader, room []byte, full bool) (n int, err error) {
	defer func() {
		if n <= 0 && !full && w.Skip != nil {
			w.Skip()
		}
	}()
	return from.Read(room)
}
