package enginetest

// A Raw is one end of a connection in the hands of a test, which says and hears bytes, and does nothing by itself.
type Raw struct{ rx, tx *pipe }

// Dial connects to context target of whoever listens on name. The caller may say that he is anybody whom Listen knows.
func (n *Net) Dial(name string, target int) (*Raw, error) {
	c, err := n.find(name, target)
	if err != nil {
		return nil, err
	}
	there, back := &pipe{}, &pipe{}
	c.accept(there, back, func(name string) bool { return n.stranger(name) != nil })
	return &Raw{rx: back, tx: there}, nil
}

// Listen has accept take the connections that are made to name. It runs with an endpoint locked.
func (n *Net) Listen(name string, accept func(*Raw)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.strangers == nil {
		n.strangers = map[string]func(*Raw){}
	}
	n.strangers[name] = accept
}

// stranger returns what Listen was given for name, or nil.
func (n *Net) stranger(name string) func(*Raw) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.strangers[name]
}

// Write says b, however much is under way.
func (r *Raw) Write(b []byte) { r.tx.write([][]byte{b}, 1<<30) }

// Read takes what has come; over tells that there will be no more.
func (r *Raw) Read() (b []byte, over bool) {
	r.rx.mu.Lock()
	defer r.rx.mu.Unlock()
	b, r.rx.buf = r.rx.buf, nil
	return b, r.rx.closed
}

// Close ends the connection.
func (r *Raw) Close() { r.tx.close() }
