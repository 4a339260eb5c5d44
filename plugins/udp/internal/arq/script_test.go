package arq

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the expected output of the scripts anew")

// TestScripts plays the files of testdata/script: commands, ----, and what they print. Numbers count from the first packet.
//
//	nodes a: seed lazy window=8; b: modern eager    two machines
//	join                        a dials b
//	quiet, loud                 print no packets, print them
//	send a 3 64                 three messages of 64 bytes
//	bulk a 5000                 a piece of bulk data
//	barrier a, void a           as the methods; void: the payload is canceled
//	drop a 2 3 3                packets 2 and 3 of a's lane 0 are lost, 3 twice; drop a 1:2: of lane 1
//	twice a 2                   packet 2 of a arrives twice
//	dead, alive                 nothing arrives, everything does
//	busy b 3s                   b's socket is not read for that long
//	pass 20ms                   time passes
//	finish a                    a ends in order
//	finished b                  b's user ends the association when a does
//	is a                        state and numbers
//	stats a                     counts that are not zero
//	got b                       the received messages
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			var out, again strings.Builder
			s := &scriptPlayer{T: t, nodes: map[string]*node{}, lost: map[string]int{}, twice: map[string]bool{}}
			for _, part := range strings.Split(strings.TrimSpace(string(b)), "\n\n") {
				cmds, _, _ := strings.Cut(part, "\n----")
				s.out = &strings.Builder{}
				for _, line := range strings.Split(cmds, "\n") {
					if !strings.HasPrefix(line, "#") {
						s.command(line)
					}
				}
				fmt.Fprintf(&again, "%s\n----\n%s\n", cmds, s.out)
				out.WriteString(s.out.String())
			}
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(strings.TrimSpace(again.String())+"\n"), 0o644))
				return
			}
			require.Equal(t, string(b), strings.TrimSpace(again.String())+"\n")
		})
	}
}

type scriptPlayer struct {
	*testing.T
	net   *network
	nodes map[string]*node
	out   *strings.Builder
	first [2][2]uint32 // node, lane
	start time.Duration
	quiet bool
	lost  map[string]int
	twice map[string]bool
	dead  bool
	sent  int
}

func (s *scriptPlayer) command(line string) {
	f := strings.Fields(line)
	nd := (*node)(nil)
	if len(f) > 1 {
		nd = s.nodes[f[1]]
	}
	num := func(i, def int) int {
		if len(f) <= i {
			return def
		}
		v, err := strconv.Atoi(f[i])
		require.NoError(s, err, line)
		return v
	}
	switch f[0] {
	case "nodes":
		s.net = newNetwork(s.T, 1, faults{delay: time.Millisecond})
		s.net.watch, s.net.drop = s.print, s.drop
		for i, def := range strings.Split(strings.TrimPrefix(line, "nodes "), ";") {
			name, words, _ := strings.Cut(strings.TrimSpace(def), ":")
			s.nodes[name] = s.net.add(i+1, s.config(strings.Fields(words)))
		}
	case "join":
		s.quiet = true
		s.net.join(s.nodes["a"], s.nodes["b"])
		s.net.idle(10 * time.Millisecond)
		s.quiet, s.start = false, s.net.now
	case "quiet", "loud":
		s.quiet = f[0] == "quiet"
	case "send":
		for i := range num(2, 1) {
			nd.send(nd.assoc, []byte(fmt.Sprintf("%d%*s", s.sent, num(3, 8)-5-i/10, "")))
			s.sent++
			nd.flush() // each is a packet of its own
		}
	case "bulk":
		other := s.nodes[map[string]string{"a": "b", "b": "a"}[f[1]]]
		other.mem = make([]byte, num(2, 0))
		nd.bulk(nd.assoc, 0, make([]byte, num(2, 0)))
	case "barrier":
		nd.send(nd.assoc, []byte("open"))
		nd.assoc.Barrier()
	case "void":
		for ref := range nd.sources {
			nd.void[ref] = true
		}
	case "drop":
		for _, k := range f[2:] {
			s.lost[f[1]+" "+k]++
		}
	case "twice":
		s.twice[f[1]+" "+f[2]] = true
	case "dead", "alive":
		s.dead = f[0] == "dead"
	case "busy":
		d, err := time.ParseDuration(f[2])
		require.NoError(s, err, line)
		nd.busy = s.net.now + d
	case "pass":
		d, err := time.ParseDuration(f[1])
		require.NoError(s, err, line)
		s.net.idle(d)
	case "finish":
		nd.assoc.Finish(s.net.now, nil)
	case "is":
		a := nd.assoc
		fmt.Fprintf(s.out, "%s: state=%d una=%d nxt=%d expects=%d ends=%v", f[1], a.state, a.lane[0].una-s.base(nd, 0),
			a.lane[0].nxt-s.base(nd, 0), a.lane[0].rcv-s.base(s.peer(nd), 0), nd.ends)
		fmt.Fprintf(s.out, " lane1: una=%d nxt=%d expects=%d\n", a.lane[1].una-s.base(nd, 1), a.lane[1].nxt-s.base(nd, 1),
			a.lane[1].rcv-s.base(s.peer(nd), 1))
	case "stats":
		fmt.Fprintf(s.out, "%s:", f[1])
		for _, field := range strings.Fields(strings.Trim(fmt.Sprintf("%+v", nd.m.Stats()), "{}")) {
			if !strings.HasSuffix(field, ":0") && !strings.HasPrefix(field, "Peers") {
				fmt.Fprintf(s.out, " %s", field)
			}
		}
		fmt.Fprintln(s.out)
	case "got":
		fmt.Fprintf(s.out, "%s: %d messages in order, %d bytes placed, %d pieces sent\n", f[1], len(nd.got), nd.placed, len(nd.sent))
	default:
		require.Fail(s, "no such command", line)
	}
}

func (s *scriptPlayer) config(words []string) (c Config) {
	for _, w := range words {
		name, v, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(v)
		switch name {
		case "seed":
			c.Profile = Seed
		case "modern":
		case "lazy":
			c.Ack = Lazy
		case "eager":
			c.Ack = Eager
		case "adaptive":
		case "window":
			c.Window = n
		case "retries":
			c.MaxRetries = n
		default:
			require.Fail(s, "no such setting", w)
		}
	}
	return c
}

func (s *scriptPlayer) peer(nd *node) *node {
	if nd == s.nodes["a"] {
		return s.nodes["b"]
	}
	return s.nodes["a"]
}

func (s *scriptPlayer) name(nd *node) string {
	if nd == s.nodes["a"] {
		return "a"
	}
	return "b"
}

// base is the number of the first packet of nd.
func (s *scriptPlayer) base(nd *node, lane int) uint32 {
	i := int(s.name(nd)[0] - 'a')
	if s.first[i][lane] == 0 {
		s.first[i][lane] = nd.assoc.lane[lane].una
	}
	return s.first[i][lane]
}

func (s *scriptPlayer) print(from *node, p *Packet) {
	if s.quiet {
		return
	}
	q := *p
	if p.kind == kindData || p.kind == kindAck {
		lane := p.lane()
		q.seq -= s.base(from, lane)
		if p.kind == kindAck {
			q.seq = p.seq - s.base(s.peer(from), lane)
		}
		q.ack -= s.base(s.peer(from), lane)
		q.edge -= s.base(s.peer(from), lane)
	}
	fmt.Fprintf(s.out, "%v %s %v\n", s.net.now-s.start, s.name(from), &q)
}

func (s *scriptPlayer) drop(from *node, p *Packet) bool {
	if p.kind == kindData && !s.quiet {
		key := fmt.Sprintf("%s %d", s.name(from), p.seq-s.base(from, p.lane()))
		if p.lane() == 1 {
			key = fmt.Sprintf("%s 1:%d", s.name(from), p.seq-s.base(from, 1))
		}
		if s.lost[key] > 0 {
			s.lost[key]--
			return true
		}
		if s.twice[key] {
			delete(s.twice, key)
			b := p.append(nil)
			b = append(b, p.body...)
			seal(b)
			s.net.inject(s.net.now+s.net.f.delay, from.addr, s.peer(from).addr, b)
		}
	}
	return s.dead
}
