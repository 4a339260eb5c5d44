package protocol

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A ServerConfig says what a server waits for.
type ServerConfig struct {
	Form   Form
	Size   int // how many clients
	Auth   Auth
	Limits Limits
	// Pending bounds the connections that have not joined; the oldest is closed to make room. Zero means Size+256.
	Pending int
	// Nonce fills b with random bytes. It is needed for Auth.Secret only.
	Nonce func(b []byte)
}

// An Output is what to do with a connection: send bytes, then close it if Close is set. The bytes may be shared between
// outputs and must not be changed.
type Output struct {
	Conn  int
	Send  []byte
	Close bool
}

// An EventKind says what an Event is about.
type EventKind int

const (
	Joined  EventKind = iota // a client has its rank
	Refused                  // a connection was closed that had no rank, or had one before all had joined; Err says why
	Settled                  // a label is complete and was sent to all
	Started                  // all clients are done; the startup is complete
	Odd                      // a client did what is tolerated; Err says what
	Left                     // a client has sent FINI
	Failed                   // a client has failed after the startup was complete
	Aborted                  // the startup has failed
)

// An Event tells the program that runs a server what has happened.
type Event struct {
	Kind  EventKind
	Rank  int // -1 if it is about no client
	Label Label
	Err   error
}

// A Server is the server's state machine. Connections have numbers, which the caller chooses and does not use again.
type Server struct {
	cfg    ServerConfig
	conns  map[int]*conn
	fresh  []int   // connections that have not joined, the oldest first
	ranks  []*conn // by rank; nil: not there
	here   int     // how many are not nil
	gone   int     // how many have left or failed after the start
	sets   collection
	stage  stage
	failed []error
	err    error
	out    []Output
	events []Event
}

// A stage is how far all clients are.
type stage int

const (
	gathering  stage = iota // not all have joined
	collecting              // not all are done
	running                 // the startup is complete, not all have left
	over
)

// A conn is one connection.
type conn struct {
	id    int
	in    decoder
	known bool // authenticated
	mech  int  // the mechanism that was named, if need is not 0
	need  int  // raw bytes that it has to send before the next command
	nonce []byte
	rank  int // -1: has not joined
	done  bool
}

// NewServer returns a server, or an error if the configuration makes no sense.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.Form.checkSize(cfg.Size); err != nil {
		return nil, err
	}
	if err := cfg.Auth.check(cfg.Form); err != nil {
		return nil, err
	}
	if err := cfg.Limits.fill(); err != nil {
		return nil, err
	}
	if cfg.Pending == 0 {
		cfg.Pending = cfg.Size + 256
	}
	return &Server{
		cfg:   cfg,
		conns: map[int]*conn{},
		ranks: make([]*conn, cfg.Size),
		sets:  newCollection(cfg.Size, cfg.Limits),
	}, nil
}

// Take returns what is to be done, in order, and what has happened since the last call.
func (s *Server) Take() ([]Output, []Event) {
	out, events := s.out, s.events
	s.out, s.events = nil, nil
	return out, events
}

// Over reports whether the server has ended. The error is nil if every client has left with FINI, the reason if the
// startup has failed, and what became of the clients that have failed after it.
func (s *Server) Over() (bool, error) { return s.stage == over, s.err }

// HasJoined reports whether the connection has joined: until then the caller limits its time, with Lost and ErrLate.
func (s *Server) HasJoined(id int) bool {
	c := s.conns[id]
	return c != nil && c.rank >= 0
}

// Connect begins a connection.
func (s *Server) Connect(id int) {
	if s.stage == over {
		s.out = append(s.out, Output{Conn: id, Close: true})
		return
	}
	if len(s.fresh) >= s.cfg.Pending {
		s.drop(s.conns[s.fresh[0]], ErrCrowded)
	}
	s.conns[id] = &conn{id: id, rank: -1}
	s.fresh = append(s.fresh, id)
}

// Receive takes bytes of a connection. It keeps no reference to b.
func (s *Server) Receive(id int, b []byte) {
	c := s.conns[id]
	if c == nil {
		return
	}
	c.in.write(b)
	for s.conns[id] == c {
		if c.need > 0 {
			answer, ok := c.in.raw(c.need)
			if !ok {
				return
			}
			if err := s.proven(c, answer); err != nil {
				s.drop(c, err)
			}
			continue
		}
		code, payload, ok, err := c.in.next(func(code Code) int { return s.longest(c, code) })
		if err == nil && !ok {
			return
		}
		if err == nil {
			err = s.command(c, code, payload)
		}
		if err != nil {
			s.drop(c, err)
		}
	}
}

// Lost ends a connection that has failed, or was closed by its client; err may be nil then.
func (s *Server) Lost(id int, err error) {
	if c := s.conns[id]; c != nil {
		if err == nil {
			err = fmt.Errorf("connection closed: %w", io.ErrUnexpectedEOF)
		}
		s.drop(c, err)
	}
}

// Expire ends a startup that is not complete. The error is a *MissingError.
func (s *Server) Expire() {
	if s.stage > collecting {
		return
	}
	missing := &MissingError{}
	for rank, c := range s.ranks {
		if c == nil {
			missing.Ranks = append(missing.Ranks, rank)
		}
	}
	if s.stage == collecting {
		missing.Waiting = s.sets.waiting()
		if len(missing.Waiting) == 0 {
			missing.Undone = s.sets.undone()
		}
	}
	s.abort(missing.firstOf(), missing)
}

// Stop ends the server at once. A startup that is not complete is aborted; after it nobody needs the server.
func (s *Server) Stop(err error) {
	switch {
	case s.stage < running:
		s.abort(-1, err)
	case s.stage == running:
		s.stage, s.err = over, err
		s.endAll()
	}
}

const (
	maxSmall    = 64   // the longest payload of every command but a COLL of a client that may send one
	maxOptional = 4096 // of a command that is skipped
)

func (s *Server) longest(c *conn, code Code) int {
	switch {
	case code == CodeColl && c.rank >= 0 && s.stage == collecting:
		return 4 + s.cfg.Limits.Part
	case code&optional != 0 && s.cfg.Form == Native && c.rank >= 0:
		return maxOptional
	}
	return maxSmall
}

// command handles one command. An error ends the connection.
func (s *Server) command(c *conn, code Code, payload []byte) error {
	if !c.known && code != CodeAuth {
		if !s.cfg.Auth.None {
			return fmt.Errorf("%w: %v before AUTH", ErrDenied, code)
		}
		c.known = true
	}
	member := c.rank >= 0
	switch {
	case code == CodeAuth && !c.known:
		return s.authenticate(c, payload)
	case code == s.cfg.Form.joinCode() && !member:
		return s.join(c, payload)
	case code == CodeColl && member && s.stage == collecting && !c.done:
		return s.collect(c, payload)
	case code == CodeDone && member && s.stage == collecting && !c.done:
		s.tolerate(c, code, payload)
		c.done = true
		s.sets.end(c.rank)
		s.advance()
		return nil
	case code == CodeFini && member && s.stage == running:
		s.tolerate(c, code, payload)
		s.leave(c)
		return nil
	case code&optional != 0 && member && s.cfg.Form == Native:
		return nil
	}
	return violation("%v out of order", code)
}

// tolerate reports a payload where none is expected.
func (s *Server) tolerate(c *conn, code Code, payload []byte) {
	if len(payload) > 0 {
		s.event(Event{Kind: Odd, Rank: c.rank, Err: fmt.Errorf("%v with a payload of %d bytes", code, len(payload))})
	}
}

func (s *Server) authenticate(c *conn, payload []byte) error {
	auth := &s.cfg.Auth
	switch len(payload) {
	case 8: // a key, and no answer
		if !auth.None && !auth.keyIs(payload) {
			return ErrDenied
		}
		c.known = true
		return nil
	case 4: // a mask of mechanisms
	default:
		return violation("AUTH with a length of %d", len(payload))
	}
	mech, ok := auth.pick(s.cfg.Form, uint32(getInt32(payload)))
	if !ok {
		return fmt.Errorf("%w: no common mechanism", ErrDenied)
	}
	c.mech, c.need = mech, answerLen(mech)
	c.known = mech == mechNone
	choice := int32s(mech, c.need)
	if mech == mechSecret {
		c.nonce = make([]byte, nonceLen)
		s.cfg.Nonce(c.nonce)
		choice = append(choice, c.nonce...)
	}
	s.send(c, choice)
	return nil
}

// proven checks what a client has sent to prove who it is.
func (s *Server) proven(c *conn, answer []byte) error {
	auth := &s.cfg.Auth
	c.need = 0
	if c.mech == mechKey {
		if !auth.keyIs(answer) {
			return ErrDenied
		}
		c.known = true
		return nil
	}
	nonce, proof := answer[:nonceLen], answer[nonceLen:]
	if !hmac.Equal(proof, auth.prove("client", c.nonce, nonce)) {
		return ErrDenied
	}
	s.send(c, auth.prove("server", c.nonce, nonce))
	c.known = true
	return nil
}

// join gives a client its rank, and begins to collect when it is the last.
func (s *Server) join(c *conn, payload []byte) error {
	rank, err := s.cfg.Form.parseJoin(payload, s.cfg.Size)
	switch {
	case err != nil:
		return err
	case rank < 0 || rank >= s.cfg.Size:
		return fmt.Errorf("%w: %d is not in 0 to %d", ErrRank, rank, s.cfg.Size-1)
	case s.ranks[rank] != nil:
		return fmt.Errorf("%w: %d is taken", ErrRank, rank)
	}
	s.fresh = slices.DeleteFunc(s.fresh, func(id int) bool { return id == c.id })
	c.rank = rank
	s.ranks[rank] = c
	s.here++
	s.event(Event{Kind: Joined, Rank: rank})
	if s.here == s.cfg.Size {
		s.stage = collecting
		s.sendAll(appendCommand(nil, s.cfg.Form.joinCode(), int32s(s.cfg.Size)))
	}
	return nil
}

// collect takes a part.
func (s *Server) collect(c *conn, payload []byte) error {
	if len(payload) < 4 {
		return violation("COLL with a length of %d", len(payload))
	}
	if err := s.sets.submit(c.rank, Label(getInt32(payload)), payload[4:]); err != nil {
		return err
	}
	s.advance()
	return nil
}

// advance sends what has become complete.
func (s *Server) advance() {
	for set := s.sets.complete(); set != nil; set = s.sets.complete() {
		s.sendAll(appendCommand(nil, CodeColl, s.cfg.Form.setPayload(set, s.cfg.Size)))
		s.event(Event{Kind: Settled, Rank: -1, Label: set.label})
	}
	if s.sets.finished() {
		s.stage = running
		s.sendAll(appendCommand(nil, CodeDone))
		s.event(Event{Kind: Started, Rank: -1})
	}
}

func (s *Server) leave(c *conn) {
	s.end(c)
	s.event(Event{Kind: Left, Rank: c.rank})
	s.countGone()
}

// drop closes a connection because of err, and does what follows from it for the others.
func (s *Server) drop(c *conn, err error) {
	switch {
	case s.stage == collecting && c.rank >= 0:
		s.abort(c.rank, &MemberError{c.rank, err})
	case s.stage == running && c.rank >= 0:
		s.end(c)
		s.failed = append(s.failed, &MemberError{c.rank, err})
		s.event(Event{Kind: Failed, Rank: c.rank, Err: err})
		s.countGone()
	default:
		if c.rank >= 0 {
			s.ranks[c.rank] = nil
			s.here--
		}
		if s.cfg.Form == Native && c.known {
			s.send(c, abortCommand(c.rank, err))
		}
		s.end(c)
		s.event(Event{Kind: Refused, Rank: c.rank, Err: err})
	}
}

// countGone ends the server when nobody is left.
func (s *Server) countGone() {
	if s.gone++; s.gone < s.cfg.Size {
		return
	}
	s.stage = over
	s.err = errors.Join(s.failed...)
	s.endAll()
}

// abort ends everything. Clients that have joined are told why, if the form has a command for it.
func (s *Server) abort(rank int, err error) {
	s.stage, s.err = over, err
	if s.cfg.Form == Native {
		s.sendAll(abortCommand(rank, err))
	}
	s.event(Event{Kind: Aborted, Rank: rank, Err: err})
	s.endAll()
}

// end closes one connection, endAll all of them.
func (s *Server) end(c *conn) {
	delete(s.conns, c.id)
	s.fresh = slices.DeleteFunc(s.fresh, func(id int) bool { return id == c.id })
	s.out = append(s.out, Output{Conn: c.id, Close: true})
}

func (s *Server) endAll() {
	ids := make([]int, 0, len(s.conns))
	for id := range s.conns {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		s.end(s.conns[id])
	}
}

func (s *Server) send(c *conn, b []byte) {
	s.out = append(s.out, Output{Conn: c.id, Send: b})
}

// sendAll sends to all that have joined and have not left.
func (s *Server) sendAll(b []byte) {
	for _, c := range s.ranks {
		if c != nil && s.conns[c.id] == c {
			s.send(c, b)
		}
	}
}

func (s *Server) event(e Event) { s.events = append(s.events, e) }
