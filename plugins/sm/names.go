package sm

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"strings"
)

// addressNames implements carrier.Names.
type addressNames struct {
	self string // the class's canonical or private name
}

// maxName is the maximum length of a name in bytes. It is limited because the path must fit in a
// socket address.
const maxName = 64

// parseName returns the part of a canonical name after sm://, or an error if the name is not valid.
func parseName(name string) (string, error) {
	rest, ok := strings.CutPrefix(name, scheme+"://")
	if !ok {
		return "", notValid(name, "is not an sm address")
	}
	if strings.HasPrefix(rest, "@") {
		return "", codes.WithText(codes.ErrUnreachable,
			"address "+name+" is of a process that does not listen")
	}
	if err := checkName(rest); err != nil {
		return "", notValid(name, err.Error())
	}
	return rest, nil
}

// checkName returns an error if text is not a valid process name.
func checkName(text string) error {
	for i, r := range text {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._-", r)) {
			return fmt.Errorf("has the invalid character %q, want letters, digits, and . _ - after the first", r)
		}
	}
	switch {
	case text == "":
		return fmt.Errorf("has no name: want sm://NAME")
	case len(text) > maxName:
		return fmt.Errorf("has a name of %d bytes, the limit is %d", len(text), maxName)
	case strings.HasSuffix(text, lockSuffix):
		return fmt.Errorf("has the reserved suffix %s", lockSuffix)
	}
	return nil
}

// lockSuffix is appended to the path of a socket to form the path of its lock file.
const lockSuffix = ".qslock"

func notValid(name, why string) error {
	return codes.WithText(codes.ErrInvalid, "address "+name+" "+why)
}

// Check implements carrier.Names.
func (n *addressNames) Check(name string) error {
	_, err := parseName(name)
	return err
}

// Resolve implements carrier.Names. A name is its own address, so done is called immediately.
func (n *addressNames) Resolve(text string, done func(name string, err error)) (cancel func()) {
	switch _, err := parseName(text); {
	case text == n.self:
		done(text, nil)
	case err != nil && strings.HasPrefix(text, scheme+"://@"):
		done("", codes.WithText(codes.ErrNoEntry,
			"address "+text+" is of a process that does not listen"))
	default:
		done(text, err)
	}
	return nil
}
