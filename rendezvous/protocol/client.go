package protocol

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"slices"
)

// A ClientConfig says who a client is.
type ClientConfig struct {
	Form   Form
	Rank   int
	Size   int // how many clients there should be; zero: the server decides
	Auth   Auth
	Limits Limits
	// Nonce fills b with random bytes. It is needed for Auth.Secret only.
	Nonce func(b []byte)
}

// A Client is the client's state machine. Its methods return an error for what the caller may not do, and Receive one for
// what the server may not; after that it is of no more use.
type Client struct {
	cfg   ClientConfig
	in    decoder
	out   []byte
	stage clientStage
	need  int    // raw bytes that the server has to send before its next command
	nonce []byte // the server's, then our own behind it
	size  int
	asked []Label // submitted, and not complete; ascending
	last  Label   // the last that was submitted
	heard Label   // the last set that has arrived
	sets  []Set
	err   error
}

type clientStage int

const (
	choosing   clientStage = iota // waits for the server to name a mechanism
	challenged                    // waits for its nonce
	verifying                     // waits for its proof
	joining
	submitting
	finishing // has sent DONE
	started
	left
)

// NewClient returns a client that has something to send at once.
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
	if err := cfg.Auth.check(cfg.Form); err != nil {
		return nil, err
	}
	if err := cfg.Limits.fill(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg}
	if cfg.Auth.Bare {
		c.send(CodeAuth, cfg.Auth.keyBytes())
		c.join()
	} else {
		c.send(CodeAuth, int32s(int(cfg.Auth.mask(cfg.Form))))
		c.need = 8
	}
	return c, nil
}

// Take returns the bytes to send, and the sets that have arrived, since the last call.
func (c *Client) Take() ([]byte, []Set) {
	out, sets := c.out, c.sets
	c.out, c.sets = nil, nil
	return out, sets
}

// Size returns how many clients there are, or 0 before all have joined.
func (c *Client) Size() int { return c.size }

// Started reports whether the startup is complete.
func (c *Client) Started() bool { return c.stage >= started }

// Submit sends a part. Labels are in ascending order. The set arrives once every client has submitted the label, or a
// higher one, or is done.
func (c *Client) Submit(label Label, data []byte) error {
	switch {
	case c.err != nil:
		return c.err
	case c.stage != submitting:
		return errors.New("rendezvous: a label can be submitted after all have joined, and before Done")
	case label <= c.last:
		return fmt.Errorf("rendezvous: label %v after %v: labels must be positive and ascend", label, c.last)
	case len(data) > c.cfg.Limits.Part:
		return fmt.Errorf("rendezvous: label %v: a part of %d bytes, at most %d allowed", label, len(data), c.cfg.Limits.Part)
	}
	c.last = label
	c.asked = append(c.asked, label)
	c.send(CodeColl, int32s(int(label)), data)
	return nil
}

// Done says that no more labels come from this client.
func (c *Client) Done() error {
	if c.err != nil {
		return c.err
	}
	if c.stage != submitting {
		return errors.New("rendezvous: Done comes once, after all have joined")
	}
	c.stage = finishing
	c.send(CodeDone)
	return nil
}

// Fini says that this client leaves. The server sends nothing back.
func (c *Client) Fini() error {
	if c.err != nil {
		return c.err
	}
	if c.stage != started {
		return errors.New("rendezvous: Fini comes once, after the startup is complete")
	}
	c.stage = left
	c.send(CodeFini)
	return nil
}

// Receive takes bytes of the server. It keeps no reference to b.
func (c *Client) Receive(b []byte) error {
	if c.err != nil {
		return c.err
	}
	c.in.write(b)
	for c.err == nil {
		if c.need > 0 {
			b, ok := c.in.raw(c.need)
			if !ok {
				return nil
			}
			c.err = c.raw(b)
			continue
		}
		code, payload, ok, err := c.in.next(c.longest)
		if err == nil && !ok {
			return nil
		}
		if err == nil {
			err = c.command(code, payload)
		}
		c.err = err
	}
	return c.err
}

func (c *Client) longest(code Code) int {
	switch {
	case code == CodeColl && c.size > 0:
		return c.cfg.Form.overhead(c.size) + c.cfg.Limits.Set
	case code == CodeAbrt && c.cfg.Form == Native:
		return 4 + maxReason
	case code&optional != 0 && c.cfg.Form == Native:
		return maxOptional
	}
	return maxSmall
}

// raw takes bytes that belong to no command: what the server sends to authenticate.
func (c *Client) raw(b []byte) error {
	c.need = 0
	switch c.stage {
	case choosing:
		return c.chosen(getInt32(b), getInt32(b[4:]))
	case challenged:
		c.nonce = slices.Concat(b, make([]byte, nonceLen))
		c.cfg.Nonce(c.nonce[nonceLen:])
		c.out = append(c.out, c.nonce[nonceLen:]...)
		c.out = append(c.out, c.cfg.Auth.prove("client", b, c.nonce[nonceLen:])...)
		c.stage, c.need = verifying, nonceLen
		return nil
	default: // verifying
		if !hmac.Equal(b, c.cfg.Auth.prove("server", c.nonce[:nonceLen], c.nonce[nonceLen:])) {
			return fmt.Errorf("%w: the server does not know the secret", ErrDenied)
		}
		c.join()
		return nil
	}
}

// chosen handles the mechanism that the server has named.
func (c *Client) chosen(mech, n int) error {
	if mech < 0 || mech > mechSecret || c.cfg.Auth.mask(c.cfg.Form)>>mech&1 == 0 {
		return fmt.Errorf("%w: the server wants mechanism %d, which was not offered", ErrDenied, mech)
	}
	if mech != mechKey && n != answerLen(mech) { // LAM/MPI looks at no length, and a key has only one
		return violation("mechanism %d with an answer of %d bytes", mech, n)
	}
	switch mech {
	case mechSecret:
		c.stage, c.need = challenged, nonceLen
		return nil
	case mechKey:
		c.out = append(c.out, c.cfg.Auth.keyBytes()...)
	}
	c.join()
	return nil
}

func (c *Client) join() {
	c.stage = joining
	c.send(c.cfg.Form.joinCode(), c.cfg.Form.join(c.cfg.Rank, c.cfg.Size))
}

func (c *Client) command(code Code, payload []byte) error {
	switch {
	case code == c.cfg.Form.joinCode() && c.stage == joining:
		return c.joined(payload)
	case code == CodeColl && (c.stage == submitting || c.stage == finishing):
		return c.collected(payload)
	case code == CodeDone && c.stage == finishing:
		if len(c.asked) > 0 {
			return violation("DONE before label %v", c.asked[0])
		}
		c.stage = started
		return nil
	case code == CodeAbrt && c.cfg.Form == Native:
		abort, err := parseAbort(payload)
		if err != nil {
			return err
		}
		return abort
	case code&optional != 0 && c.cfg.Form == Native:
		return nil
	}
	return violation("%v out of order", code)
}

func (c *Client) joined(payload []byte) error {
	if len(payload) < 4 || len(payload) > 4 && c.cfg.Form == Strict { // more is of a later release
		return violation("%v with a length of %d", c.cfg.Form.joinCode(), len(payload))
	}
	size := getInt32(payload)
	if c.cfg.Form.checkSize(size) != nil || c.cfg.Rank >= size || c.cfg.Size != 0 && size != c.cfg.Size {
		return violation("%d clients", size)
	}
	c.size, c.stage = size, submitting
	return nil
}

// collected handles a set. Sets that this client has not asked for are handed over as well: the program may know their
// labels.
func (c *Client) collected(payload []byte) error {
	set, err := c.cfg.Form.parseSet(payload, c.size)
	if err != nil {
		return err
	}
	mine := len(c.asked) > 0 && c.asked[0] == set.Label
	switch {
	case set.Label <= c.heard:
		return violation("label %v after label %v", set.Label, c.heard)
	case len(c.asked) > 0 && c.asked[0] < set.Label:
		return violation("label %v before label %v", set.Label, c.asked[0])
	case mine != set.Mask.Has(c.cfg.Rank):
		return violation("label %v with a wrong word about rank %d", set.Label, c.cfg.Rank)
	}
	if mine {
		c.asked = c.asked[1:]
	}
	c.heard = set.Label
	c.sets = append(c.sets, set)
	return nil
}

func (c *Client) send(code Code, payload ...[]byte) {
	c.out = appendCommand(c.out, code, payload...)
}
