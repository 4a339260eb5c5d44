// Package golden has conversations of two C processes, for tests. All but "null" were recorded.
package golden

import (
	"bufio"
	"embed"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

//go:embed *.txt
var files embed.FS

// Names are those of the conversations: a call without arguments, one with arguments that do not fit into a message, transfers to
// memory that the caller lent, and from memory whose data came in the handle; output that does not fit into a message, and its
// acknowledgement; calls of an RPC that the target does not have. The two before the last with and without the longer headers of checksums.
// The last has a NULL hg_string_t in its input, before a uint32_t and bytes, and another in its output, behind a string.
var Names = []string{"first", "more", "read", "eager", "overflow", "overflowsums", "noentry", "noentrysums", "null"}

// A Message is one of a conversation.
type Message struct {
	FromOrigin bool
	Bytes      []byte
	Cut        int // bytes of payload that are left out behind Bytes
}

// Read returns a conversation.
func Read(name string) ([]Message, error) {
	f, err := files.Open(name + ".txt")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Message
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.Fields(lines.Text())
		if len(line) < 2 || line[0] == "#" {
			continue
		}
		m := Message{FromOrigin: line[0] == ">"}
		if m.Bytes, err = hex.DecodeString(line[1]); err == nil && len(line) > 2 {
			m.Cut, err = strconv.Atoi(line[2])
		}
		if err != nil {
			return nil, fmt.Errorf("golden: %s: %w", name, err)
		}
		all = append(all, m)
	}
	return all, nil
}
