package rendezvous

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// The environment of a process that "qs run" has started; rank and size are also taken from other launchers.
const (
	EnvRank = "QS_RANK"
	EnvSize = "QS_SIZE"
	EnvAddr = "QS_RENDEZVOUS"     // host:port of the server
	EnvKey  = "QS_RENDEZVOUS_KEY" // the secret, in hexadecimal digits
)

// DefaultPort is where the first process serves under Slurm, unless Options.Port says otherwise.
const DefaultPort = 7077

// A Place is what the environment says about a process.
type Place struct {
	Rank, Size int
	Addr       string // of the server; empty if Size is 1 and nobody has said where
	Secret     []byte // nil: none
	Serve      bool   // this process has to run the server
}

// launchers are the variables that give rank and size, the most particular first: under Slurm, mpirun starts processes of
// its own.
var launchers = []struct {
	rank  string
	sizes []string
}{
	{EnvRank, []string{EnvSize}},
	{"PMIX_RANK", []string{"PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
	{"PMI_RANK", []string{"PMI_SIZE"}},
	{"SLURM_PROCID", []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
}

// FromEnv finds out which process this is. lookup is os.LookupEnv, for instance. Rank and size come from QS_RANK and QS_SIZE,
// from PMIx, PMI or Slurm; without any of them the process is alone. The server is at QS_RENDEZVOUS; without it, under Slurm,
// rank 0 serves on the first host of the job, at port.
func FromEnv(lookup func(string) (string, bool), port int) (Place, error) {
	p := Place{Size: 1}
	for _, l := range launchers {
		if _, ok := lookup(l.rank); !ok {
			continue
		}
		if err := p.read(lookup, l.rank, l.sizes); err != nil {
			return Place{}, err
		}
		break
	}
	if text, ok := lookup(EnvKey); ok {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) == 0 {
			return Place{}, errors.New("rendezvous: " + EnvKey + " is not a row of hexadecimal digits") // and is not shown
		}
		p.Secret = key
	}
	nodes, slurm := lookup("SLURM_JOB_NODELIST")
	addr, ok := lookup(EnvAddr)
	switch {
	case ok:
		p.Addr = addr
	case p.Size == 1:
		p.Serve = true
	case slurm:
		host, err := firstHost(nodes)
		if err != nil {
			return Place{}, err
		}
		p.Addr, p.Serve = net.JoinHostPort(host, strconv.Itoa(port)), p.Rank == 0
	default:
		return Place{}, fmt.Errorf("rendezvous: one of %d processes, but neither %s nor SLURM_JOB_NODELIST says where the server is", p.Size, EnvAddr)
	}
	return p, nil
}

func (p *Place) read(lookup func(string) (string, bool), rank string, sizes []string) (err error) {
	if p.Rank, err = number(lookup, rank); err != nil {
		return err
	}
	for _, size := range sizes {
		if _, ok := lookup(size); !ok {
			continue
		}
		if p.Size, err = number(lookup, size); err != nil {
			return err
		}
		if p.Rank >= p.Size {
			return fmt.Errorf("rendezvous: %s is %d, but %s is %d", rank, p.Rank, size, p.Size)
		}
		return nil
	}
	return fmt.Errorf("rendezvous: %s is set, but not %s", rank, strings.Join(sizes, ", nor "))
}

func number(lookup func(string) (string, bool), name string) (int, error) {
	text, _ := lookup(name)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("rendezvous: %s is %q, want a number", name, text)
	}
	return n, nil
}

// firstHost returns the first host of a list as Slurm writes it: "node[01-04,7],login" begins with node01.
func firstHost(list string) (string, error) {
	var host strings.Builder
	for rest := list; rest != "" && rest[0] != ','; {
		if rest[0] != '[' {
			host.WriteByte(rest[0])
			rest = rest[1:]
			continue
		}
		ranges, after, ok := strings.Cut(rest[1:], "]")
		first, _, _ := strings.Cut(ranges, ",")
		first, _, _ = strings.Cut(first, "-")
		if !ok || first == "" {
			return "", fmt.Errorf("rendezvous: SLURM_JOB_NODELIST is %q, want a list of hosts", list)
		}
		host.WriteString(first)
		rest = after
	}
	if host.Len() == 0 {
		return "", fmt.Errorf("rendezvous: SLURM_JOB_NODELIST is %q, want a list of hosts", list)
	}
	return host.String(), nil
}
