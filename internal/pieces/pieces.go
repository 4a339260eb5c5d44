package pieces

import "io"

// A Reader is an io.Reader and an io.WriterTo. It is not safe for concurrent use.
type Reader struct {
	Check func() error // returns an error if reading must stop, even in the middle of a piece
	// Next returns the next piece, or io.EOF after the last one. It is not called again after an
	// error.
	Next   func() ([]byte, error)
	unread []byte // unread part of the current piece
	err    error  // error returned by Next
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.fetch(); err != nil {
		return 0, err
	}
	n := copy(p, r.unread)
	r.unread = r.unread[n:]
	return n, nil
}

// WriteTo implements io.WriterTo. It writes directly from the pieces, without copying.
func (r *Reader) WriteTo(to io.Writer) (total int64, err error) {
	for {
		if err := r.fetch(); err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := to.Write(r.unread)
		if err == nil && n < len(r.unread) {
			err = io.ErrShortWrite
		}
		r.unread = r.unread[n:]
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// fetch calls Next if the current piece has been fully read.
func (r *Reader) fetch() error {
	if err := r.Check(); err != nil {
		return err
	}
	if len(r.unread) == 0 && r.err == nil {
		r.unread, r.err = r.Next()
	}
	return r.err
}

// A Writer is an io.Writer and an io.ReaderFrom. It is not safe for concurrent use.
type Writer struct {
	Room func() ([]byte, error) // returns the buffer for the next bytes, which is empty if no more fit
	Add  func(n int) error      // commits the first n bytes of that buffer
	Full func() error           // returns the error for a write past the end
	// Skip is called instead of Add if nothing was stored, even after Read panics. It may be nil.
	Skip func()
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

// maxEmptyReads is the number of consecutive Reads that may return 0 bytes and no error.
const maxEmptyReads = 100

// ReadFrom implements io.ReaderFrom. It reads directly into the pieces, without copying.
func (w *Writer) ReadFrom(from io.Reader) (total int64, err error) {
	for empty := 0; empty < maxEmptyReads; empty++ {
		room, err := w.Room()
		if err != nil {
			return total, err
		}
		full := len(room) == 0
		if full {
			room = make([]byte, 1) // reading one byte detects whether the reader is at EOF
		}
		n, err := w.readInto(from, room, full)
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

// readInto makes one call of from.Read with room. If nothing was read, it calls Skip, unless full
// is true, which means that room is not part of the destination.
func (w *Writer) readInto(from io.Reader, room []byte, full bool) (n int, err error) {
	defer func() {
		if n <= 0 && !full && w.Skip != nil {
			w.Skip()
		}
	}()
	return from.Read(room)
}
