package protocol

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A ServerConfig configures NewServer.
type ServerConfig struct {
	Form   Form
	Size   int // number of clients
	Auth   Auth
	Limits Limits
	// Pending is the maximum number of connections that have not joined. When it is exceeded, the oldest one is
	// closed. Zero means Size+256.
	Pending int
	// Nonce fills b with random bytes. It is required only for Auth.Secret.
	Nonce func(b []byte)
}

// An Output is an instruction for a connection: send the bytes in Send, then close the connection if Close is set.
// Outputs may share memory, which the caller must not modify.
type Output struct {
	Conn  int
	Send  []byte
	Close bool
}

// An EventKind is the kind of an Event.
type EventKind int

// Event kinds.
const (
	Joined  EventKind = iota // a client has joined
	Refused                  // a connection was closed before it, or before all clients, had joined; Err is the reason
	Settled                  // a set is complete and has been sent to all clients
	Started                  // all clients are done and the startup is complete
	Odd                      // a client has deviated from the protocol in a tolerated way; Err describes it
	Left                     // a client has sent FINI
	Failed                   // a client has failed after the startup was complete
	Aborted                  // the startup has failed
)

// An Event is reported to the program that runs the server.
type Event struct {
	Kind  EventKind
	Rank  int // -1 if the event does not concern a single client
	Label Label
	Err   error
}

// A Server is the state machine of the server. Connections are identified by ids, which the caller chooses and must
// not reuse.
type Server struct {
	cfg         ServerConfig
	conns       map[int]*conn
	notJoined   []int   // ids of connections that have not joined, oldest first
	ranks       []*conn // by rank; nil until the client has joined
	joinedCount int     // number of ranks that are not nil
	goneCount   int     // number of clients that have left, or failed after the startup was complete
	sets        collection
	stage       stage
	memberErrs  []error  // errors of clients that have failed after the startup was complete
	err         error    // result, valid in stageOver
	out         []Output // returned by Take
	events      []Event  // returned by Take
}

// A stage is the stage of the startup that all clients together have reached.
type stage int

const (
	stageJoining    stage = iota // not all clients have joined
	stageCollecting              // not all clients are done
	stageRunning                 // the startup is complete, but not all clients have left
	stageOver
)

// A conn is a connection.
type conn struct {
	id            int
	in            decoder
	authenticated bool
	mech          int    // chosen mechanism, if needRaw is not 0
	needRaw       int    // number of raw bytes that precede the client's next command
	nonce         []byte // the server's nonce
	rank          int    // -1 until the client has joined
	done          bool   // the client has sent DONE
}

// NewServer returns a server, or an error if the configuration is invalid.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.Form.checkSize(cfg.Size); err != nil {
		return nil, err
	}
	if err := cfg.Auth.validate(cfg.Form); err != nil {
		return nil, err
	}
	if err := cfg.Limits.setDefaults(); err != nil {
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

// Take returns the outputs, in order, and the events since the last call.
func (s *Server) Take() ([]Output, []Event) {
	out, events := s.out, s.events
	s.out, s.events = nil, nil
	return out, events
}

// Over reports whether the server has ended. The error is nil if every client has left with FINI. Otherwise it is the
// reason why the startup failed, or the joined errors of the clients that failed after the startup was complete.
func (s *Server) Over() (bool, error) { return s.stage == stageOver, s.err }

// HasJoined reports whether the client of the connection has joined. If it does not join in time, the caller must
// call Lost with ErrLate.
func (s *Server) HasJoined(id int) bool {
	c := s.conns[id]
	return c != nil && c.rank >= 0
}

// Connect adds a connection.
func (s *Server) Connect(id int) {
	if s.stage == stageOver {
		s.out = append(s.out, Output{Conn: id, Close: true})
		return
	}
	if len(s.notJoined) >= s.cfg.Pending {
		s.drop(s.conns[s.notJoined[0]], ErrCrowded)
	}
	s.conns[id] = &conn{id: id, rank: -1}
	s.notJoined = append(s.notJoined, id)
}

// Receive handles bytes received on a connection. It does not retain b.
func (s *Server) Receive(id int, b []byte) {
	c := s.conns[id]
	if c == nil {
		return
	}
	c.in.write(b)
	for s.conns[id] == c {
		if c.needRaw > 0 {
			answer, ok := c.in.takeRaw(c.needRaw)
			if !ok {
				return
			}
			if err := s.checkProof(c, answer); err != nil {
				s.drop(c, err)
			}
			continue
		}
		code, payload, ok, err := c.in.takeCommand(func(code Code) int { return s.maxPayload(c, code) })
		if err == nil && !ok {
			return
		}
		if err == nil {
			err = s.handleCommand(c, code, payload)
		}
		if err != nil {
			s.drop(c, err)
		}
	}
}

// Lost removes a connection that has failed with err. If err is nil, the client has closed the connection.
func (s *Server) Lost(id int, err error) {
	if c := s.conns[id]; c != nil {
		if err == nil {
			err = fmt.Errorf("connection closed: %w", io.ErrUnexpectedEOF)
		}
		s.drop(c, err)
	}
}

// Expire aborts the startup with a *MissingError. If the startup is already complete, Expire has no effect.
func (s *Server) Expire() {
	if s.stage > stageCollecting {
		return
	}
	missing := &MissingError{}
	for rank, c := range s.ranks {
		if c == nil {
			missing.Ranks = append(missing.Ranks, rank)
		}
	}
	if s.stage == stageCollecting {
		missing.Waiting = s.sets.missingParts()
		if len(missing.Waiting) == 0 {
			missing.Undone = s.sets.unfinishedRanks()
		}
	}
	s.abort(missing.firstRank(), missing)
}

// Stop ends the server immediately. If the startup is not complete, it is aborted with err.
func (s *Server) Stop(err error) {
	switch {
	case s.stage < stageRunning:
		s.abort(-1, err)
	case s.stage == stageRunning:
		s.stage, s.err = stageOver, err
		s.closeAll()
	}
}

const (
	// maxSmall is the maximum payload length of all commands except COLL.
	maxSmall = 64
	// maxOptional is the maximum payload length of a command with optionalBit.
	maxOptional = 4096
)

// maxPayload returns the maximum payload length of a command with the given code that the client of c may send in the
// current stage.
func (s *Server) maxPayload(c *conn, code Code) int {
	switch {
	case code == CodeColl && c.rank >= 0 && s.stage == stageCollecting:
		return 4 + s.cfg.Limits.Part
	case code&optionalBit != 0 && s.cfg.Form == Native && c.rank >= 0:
		return maxOptional
	}
	return maxSmall
}

// handleCommand handles a command. If it returns an error, the connection must be dropped.
func (s *Server) handleCommand(c *conn, code Code, payload []byte) error {
	if !c.authenticated && code != CodeAuth {
		if !s.cfg.Auth.None {
			return fmt.Errorf("%w: %v before AUTH", ErrDenied, code)
		}
		c.authenticated = true
	}
	member := c.rank >= 0
	switch {
	case code == CodeAuth && !c.authenticated:
		return s.authenticate(c, payload)
	case code == s.cfg.Form.joinCode() && !member:
		return s.handleJoin(c, payload)
	case code == CodeColl && member && s.stage == stageCollecting && !c.done:
		return s.handlePart(c, payload)
	case code == CodeDone && member && s.stage == stageCollecting && !c.done:
		s.reportOddPayload(c, code, payload)
		c.done = true
		s.sets.finishRank(c.rank)
		s.sendComplete()
		return nil
	case code == CodeFini && member && s.stage == stageRunning:
		s.reportOddPayload(c, code, payload)
		s.handleFini(c)
		return nil
	case code&optionalBit != 0 && member && s.cfg.Form == Native:
		return nil
	}
	return violationError("%v out of order", code)
}

// reportOddPayload adds an event if a command that takes no payload has one.
func (s *Server) reportOddPayload(c *conn, code Code, payload []byte) {
	if len(payload) > 0 {
		s.addEvent(Event{Kind: Odd, Rank: c.rank, Err: fmt.Errorf("%v with a payload of %d bytes", code, len(payload))})
	}
}

// authenticate handles an AUTH and chooses the mechanism.
func (s *Server) authenticate(c *conn, payload []byte) error {
	auth := &s.cfg.Auth
	switch len(payload) {
	case 8: // a key, without negotiation
		if !auth.None && !auth.hasKey(payload) {
			return ErrDenied
		}
		c.authenticated = true
		return nil
	case 4: // a mask of mechanisms
	default:
		return violationError("AUTH with a length of %d", len(payload))
	}
	mech, ok := auth.chooseMechanism(s.cfg.Form, uint32(decodeInt32(payload)))
	if !ok {
		return fmt.Errorf("%w: no common mechanism", ErrDenied)
	}
	c.mech, c.needRaw = mech, responseLen(mech)
	c.authenticated = mech == mechNone
	choice := encodeInt32s(mech, c.needRaw)
	if mech == mechSecret {
		c.nonce = make([]byte, nonceLen)
		s.cfg.Nonce(c.nonce)
		choice = append(choice, c.nonce...)
	}
	s.send(c, choice)
	return nil
}

// checkProof checks a client's response for the chosen mechanism.
func (s *Server) checkProof(c *conn, answer []byte) error {
	auth := &s.cfg.Auth
	c.needRaw = 0
	if c.mech == mechKey {
		if !auth.hasKey(answer) {
			return ErrDenied
		}
		c.authenticated = true
		return nil
	}
	nonce, proof := answer[:nonceLen], answer[nonceLen:]
	if !hmac.Equal(proof, auth.computeProof("client", c.nonce, nonce)) {
		return ErrDenied
	}
	s.send(c, auth.computeProof("server", c.nonce, nonce))
	c.authenticated = true
	return nil
}

// handleJoin handles a join command. When the last client has joined, the server starts to collect parts.
func (s *Server) handleJoin(c *conn, payload []byte) error {
	rank, err := s.cfg.Form.parseJoin(payload, s.cfg.Size)
	switch {
	case err != nil:
		return err
	case rank < 0 || rank >= s.cfg.Size:
		return fmt.Errorf("%w: %d is not in 0 to %d", ErrRank, rank, s.cfg.Size-1)
	case s.ranks[rank] != nil:
		return fmt.Errorf("%w: %d is in use", ErrRank, rank)
	}
	s.notJoined = slices.DeleteFunc(s.notJoined, func(id int) bool { return id == c.id })
	c.rank = rank
	s.ranks[rank] = c
	s.joinedCount++
	s.addEvent(Event{Kind: Joined, Rank: rank})
	if s.joinedCount == s.cfg.Size {
		s.stage = stageCollecting
		s.sendAll(appendCommand(nil, s.cfg.Form.joinCode(), encodeInt32s(s.cfg.Size)))
	}
	return nil
}

// handlePart adds the part in a COLL to its set, and sends the sets that are now complete.
func (s *Server) handlePart(c *conn, payload []byte) error {
	if len(payload) < 4 {
		return violationError("COLL with a length of %d", len(payload))
	}
	if err := s.sets.submit(c.rank, Label(decodeInt32(payload)), payload[4:]); err != nil {
		return err
	}
	s.sendComplete()
	return nil
}

// sendComplete sends the sets that are complete, and DONE once all clients are done.
func (s *Server) sendComplete() {
	for set := s.sets.takeComplete(); set != nil; set = s.sets.takeComplete() {
		s.sendAll(appendCommand(nil, CodeColl, s.cfg.Form.setPayload(set, s.cfg.Size)))
		s.addEvent(Event{Kind: Settled, Rank: -1, Label: set.label})
	}
	if s.sets.isFinished() {
		s.stage = stageRunning
		s.sendAll(appendCommand(nil, CodeDone))
		s.addEvent(Event{Kind: Started, Rank: -1})
	}
}

// handleFini closes the connection of a client that has sent FINI, and counts the client as left.
func (s *Server) handleFini(c *conn) {
	s.closeConn(c)
	s.addEvent(Event{Kind: Left, Rank: c.rank})
	s.countGone()
}

// drop closes a connection because of err. If its client has joined and parts are being collected, drop aborts the
// startup.
func (s *Server) drop(c *conn, err error) {
	switch {
	case s.stage == stageCollecting && c.rank >= 0:
		s.abort(c.rank, &MemberError{c.rank, err})
	case s.stage == stageRunning && c.rank >= 0:
		s.closeConn(c)
		s.memberErrs = append(s.memberErrs, &MemberError{c.rank, err})
		s.addEvent(Event{Kind: Failed, Rank: c.rank, Err: err})
		s.countGone()
	default:
		if c.rank >= 0 {
			s.ranks[c.rank] = nil
			s.joinedCount--
		}
		if s.cfg.Form == Native && c.authenticated {
			s.send(c, abortCommand(c.rank, err))
		}
		s.closeConn(c)
		s.addEvent(Event{Kind: Refused, Rank: c.rank, Err: err})
	}
}

// countGone counts a client that has left or failed, and ends the server after the last one.
func (s *Server) countGone() {
	s.goneCount++
	if s.goneCount < s.cfg.Size {
		return
	}
	s.stage = stageOver
	s.err = errors.Join(s.memberErrs...)
	s.closeAll()
}

// abort fails the startup with err. rank is the rank of the client that caused the error, or -1 if no single client
// did. In the native form, clients that have joined are sent an ABRT with the reason.
func (s *Server) abort(rank int, err error) {
	s.stage, s.err = stageOver, err
	if s.cfg.Form == Native {
		s.sendAll(abortCommand(rank, err))
	}
	s.addEvent(Event{Kind: Aborted, Rank: rank, Err: err})
	s.closeAll()
}

// closeConn closes and removes a connection.
func (s *Server) closeConn(c *conn) {
	delete(s.conns, c.id)
	s.notJoined = slices.DeleteFunc(s.notJoined, func(id int) bool { return id == c.id })
	s.out = append(s.out, Output{Conn: c.id, Close: true})
}

// closeAll closes all connections in the order of their ids.
func (s *Server) closeAll() {
	ids := make([]int, 0, len(s.conns))
	for id := range s.conns {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		s.closeConn(s.conns[id])
	}
}

// send adds an output that sends b on the connection c.
func (s *Server) send(c *conn, b []byte) {
	s.out = append(s.out, Output{Conn: c.id, Send: b})
}

// sendAll sends b to all clients that have joined and not left.
func (s *Server) sendAll(b []byte) {
	for _, c := range s.ranks {
		if c != nil && s.conns[c.id] == c {
			s.send(c, b)
		}
	}
}

func (s *Server) addEvent(e Event) { s.events = append(s.events, e) }
