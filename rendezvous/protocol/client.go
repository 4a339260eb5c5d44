package protocol

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"
)

// A ClientConfig configures NewClient.
type ClientConfig struct {
	Form   Form
	Rank   int
	Size   int // expected number of clients; zero to accept the server's number
	Auth   Auth
	Limits Limits
	// Nonce fills b with random bytes. It is required only for Auth.Secret.
	Nonce func(b []byte)
}

// A Client is the state machine of a client. If a method is misused, it returns an error and has no effect. If the
// server violates the protocol, Receive returns an error, and the client can no longer be used.
type Client struct {
	cfg           ClientConfig
	in            decoder
	out           []byte // returned by Take
	stage         clientStage
	needRaw       int     // number of raw bytes that precede the server's next command
	nonces        []byte  // the server's nonce followed by this client's
	size          int     // number of clients; 0 until all have joined
	pendingLabels []Label // submitted labels whose sets have not arrived, ascending
	lastSubmitted Label
	lastReceived  Label // label of the last set
	sets          []Set // returned by Take
	err           error // returned by Receive
}

// A clientStage is the stage of the startup that a client has reached.
type clientStage int

const (
	awaitMechanism clientStage = iota // AUTH has been sent; the server chooses a mechanism
	awaitNonce                        // the server sends its nonce
	awaitProof                        // the server sends its proof
	awaitMembers                      // the join command has been sent
	submitting                        // all clients have joined
	awaitDone                         // DONE has been sent
	started                           // the startup is complete
	left                              // FINI has been sent
)

// NewClient returns a client. Its first command is available from Take immediately.
func NewClient(cfg ClientConfig) (*Client, error) {
	size := cfg.Size
	if size == 0 {
		size = cfg.Form.maxSize()
	}
	if err := cfg.Form.checkSize(size); err != nil {
		return nil, err
	}
	if cfg.Rank < 0 || cfg.Rank >= size {
		return nil, fmt.Errorf("rendezvous: rank %d is not in 0 to %d", cfg.Rank, size-1)
	}
	if err := cfg.Auth.validate(cfg.Form); err != nil {
		return nil, err
	}
	if err := cfg.Limits.setDefaults(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg}
	if cfg.Auth.Bare {
		c.send(CodeAuth, cfg.Auth.keyBytes())
		c.sendJoin()
	} else {
		c.send(CodeAuth, encodeInt32s(int(cfg.Auth.mechanisms(cfg.Form))))
		c.needRaw = 8
	}
	return c, nil
}

// Take returns the bytes to send and the sets that have arrived since the last call.
func (c *Client) Take() ([]byte, []Set) {
	out, sets := c.out, c.sets
	c.out, c.sets = nil, nil
	return out, sets
}

// Size returns the number of clients, or 0 if not all have joined yet.
func (c *Client) Size() int { return c.size }

// Started reports whether the startup is complete.
func (c *Client) Started() bool { return c.stage >= started }

// Submit sends the data of this client for label, which must be greater than all labels that it has
// submitted. The server sends the data of all clients for that label once each of them has
// submitted it or a higher one, or has called Done.
func (c *Client) Submit(label Label, data []byte) error {
	switch {
	case c.err != nil:
		return c.err
	case c.stage != submitting:
		return errors.New("rendezvous: Submit before the start or after Done")
	case label <= c.lastSubmitted:
		return fmt.Errorf("rendezvous: label %v after %v, want ascending positive labels", label, c.lastSubmitted)
	case len(data) > c.cfg.Limits.Part:
		return fmt.Errorf("rendezvous: label %v: part of %d bytes, limit %d", label, len(data), c.cfg.Limits.Part)
	}
	c.lastSubmitted = label
	c.pendingLabels = append(c.pendingLabels, label)
	c.send(CodeColl, encodeInt32s(int(label)), data)
	return nil
}

// Done announces that this client will not submit further labels.
func (c *Client) Done() error {
	if c.err != nil {
		return c.err
	}
	if c.stage != submitting {
		return errors.New("rendezvous: Done before the start or called twice")
	}
	c.stage = awaitDone
	c.send(CodeDone)
	return nil
}

// Fini announces that this client is leaving. The server does not reply.
func (c *Client) Fini() error {
	if c.err != nil {
		return c.err
	}
	if c.stage != started {
		return errors.New("rendezvous: Fini before the end of the startup or called twice")
	}
	c.stage = left
	c.send(CodeFini)
	return nil
}

// Receive handles bytes received from the server. It does not retain b.
func (c *Client) Receive(b []byte) error {
	if c.err != nil {
		return c.err
	}
	c.in.write(b)
	for c.err == nil {
		if c.needRaw > 0 {
			b, ok := c.in.takeRaw(c.needRaw)
			if !ok {
				return nil
			}
			c.err = c.handleRaw(b)
			continue
		}
		code, payload, ok, err := c.in.takeCommand(c.maxPayload)
		if err == nil && !ok {
			return nil
		}
		if err == nil {
			err = c.handleCommand(code, payload)
		}
		c.err = err
	}
	return c.err
}

// maxPayload returns the maximum payload length of a command with the given code in the current stage.
func (c *Client) maxPayload(code Code) int {
	switch {
	case code == CodeColl && c.size > 0:
		return c.cfg.Form.setOverhead(c.size) + c.cfg.Limits.Set
	case code == CodeAbrt && c.cfg.Form == Native:
		return 4 + maxReason
	case code&optionalBit != 0 && c.cfg.Form == Native:
		return maxOptional
	}
	return maxSmall
}

// handleRaw handles received bytes of the authentication exchange that are not part of a command.
func (c *Client) handleRaw(b []byte) error {
	c.needRaw = 0
	switch c.stage {
	case awaitMechanism:
		return c.handleMechanism(decodeInt32(b), decodeInt32(b[4:]))
	case awaitNonce:
		c.nonces = slices.Concat(b, make([]byte, nonceLen))
		c.cfg.Nonce(c.nonces[nonceLen:])
		c.out = append(c.out, c.nonces[nonceLen:]...)
		c.out = append(c.out, c.cfg.Auth.computeProof("client", b, c.nonces[nonceLen:])...)
		c.stage, c.needRaw = awaitProof, nonceLen
		return nil
	default: // awaitProof
		if !hmac.Equal(b, c.cfg.Auth.computeProof("server", c.nonces[:nonceLen], c.nonces[nonceLen:])) {
			return fmt.Errorf("%w: server has another secret", ErrDenied)
		}
		c.sendJoin()
		return nil
	}
}

// handleMechanism handles the server's choice, which consists of a mechanism and the length of the client's response.
func (c *Client) handleMechanism(mech, n int) error {
	if mech < 0 || mech > mechSecret || c.cfg.Auth.mechanisms(c.cfg.Form)>>mech&1 == 0 {
		return fmt.Errorf("%w: server chose mechanism %d, which was not offered", ErrDenied, mech)
	}
	if mech != mechKey && n != responseLen(mech) { // the length is not checked for a key, because LAM/MPI ignores it
		return violationError("mechanism %d with a response of %d bytes", mech, n)
	}
	switch mech {
	case mechSecret:
		c.stage, c.needRaw = awaitNonce, nonceLen
		return nil
	case mechKey:
		c.out = append(c.out, c.cfg.Auth.keyBytes()...)
	}
	c.sendJoin()
	return nil
}

// sendJoin sends the join command.
func (c *Client) sendJoin() {
	c.stage = awaitMembers
	c.send(c.cfg.Form.joinCode(), c.cfg.Form.joinPayload(c.cfg.Rank, c.cfg.Size))
}

// handleCommand handles a command from the server.
func (c *Client) handleCommand(code Code, payload []byte) error {
	switch {
	case code == c.cfg.Form.joinCode() && c.stage == awaitMembers:
		return c.handleJoined(payload)
	case code == CodeColl && (c.stage == submitting || c.stage == awaitDone):
		return c.handleSet(payload)
	case code == CodeDone && c.stage == awaitDone:
		if len(c.pendingLabels) > 0 {
			return violationError("DONE before label %v", c.pendingLabels[0])
		}
		c.stage = started
		return nil
	case code == CodeAbrt && c.cfg.Form == Native:
		abort, err := parseAbort(payload)
		if err != nil {
			return err
		}
		return abort
	case code&optionalBit != 0 && c.cfg.Form == Native:
		return nil
	}
	return violationError("%v out of order", code)
}

// handleJoined handles the command with the number of clients, which the server sends when all have joined.
func (c *Client) handleJoined(payload []byte) error {
	if len(payload) < 4 || len(payload) > 4 && c.cfg.Form == Strict { // a later release may send more
		return violationError("%v with a length of %d", c.cfg.Form.joinCode(), len(payload))
	}
	size := decodeInt32(payload)
	if c.cfg.Form.checkSize(size) != nil || c.cfg.Rank >= size || c.cfg.Size != 0 && size != c.cfg.Size {
		return violationError("%d clients", size)
	}
	c.size, c.stage = size, submitting
	return nil
}

// handleSet handles a set received from the server. Sets with labels that this client has not submitted are delivered
// as well, for programs that use those labels.
func (c *Client) handleSet(payload []byte) error {
	set, err := c.cfg.Form.parseSet(payload, c.size)
	if err != nil {
		return err
	}
	mine := len(c.pendingLabels) > 0 && c.pendingLabels[0] == set.Label
	switch {
	case set.Label <= c.lastReceived:
		return violationError("label %v after label %v", set.Label, c.lastReceived)
	case len(c.pendingLabels) > 0 && c.pendingLabels[0] < set.Label:
		return violationError("label %v before label %v", set.Label, c.pendingLabels[0])
	case mine != set.Mask.Has(c.cfg.Rank):
		return violationError("label %v has a wrong mask bit for rank %d", set.Label, c.cfg.Rank)
	}
	if mine {
		c.pendingLabels = c.pendingLabels[1:]
	}
	c.lastReceived = set.Label
	c.sets = append(c.sets, set)
	return nil
}

// send appends a command to the output of Take.
func (c *Client) send(code Code, payload ...[]byte) {
	c.out = appendCommand(c.out, code, payload...)
}
