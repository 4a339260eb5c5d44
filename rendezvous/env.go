package rendezvous

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Environment variables set by "qs run". The rank and size are also read from the variables of other launchers.
const (
	EnvRank = "QS_RANK"
	EnvSize = "QS_SIZE"
	EnvAddr = "QS_RENDEZVOUS"     // host:port of the server
	EnvKey  = "QS_RENDEZVOUS_KEY" // shared secret, hexadecimal
)

// DefaultPort is the port of the server that rank 0 runs under Slurm, unless Options.Port is set.
const DefaultPort = 7077

// A Place describes the position of a process among the processes started together with it, as given by its
// environment.
type Place struct {
	Rank, Size int
	Addr       string // host:port of the server; empty if Size is 1 and EnvAddr is not set
	Secret     []byte // nil if there is none
	Serve      bool   // whether this process must run the server
}

// launchers lists the variables that hold the rank and size under each launcher, in order of precedence. mpirun may
// run inside a Slurm job, whose variables then describe mpirun itself.
var launchers = []struct {
	rank  string
	sizes []string
}{
	{EnvRank, []string{EnvSize}},
	{"PMIX_RANK", []string{"PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
	{"PMI_RANK", []string{"PMI_SIZE"}},
	{"SLURM_PROCID", []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
}

// FromEnv determines the Place of this process from its environment. lookup is os.LookupEnv or an equivalent
// function.
//
// The rank and size are taken from QS_RANK and QS_SIZE, or from the variables of PMIx, PMI or Slurm. If none of them
// is set, the process is the only one. The server's address is QS_RENDEZVOUS. If that is not set under Slurm, rank 0
// runs the server on the first host of the job and the given port.
func FromEnv(lookup func(string) (string, bool), port int) (Place, error) {
	p := Place{Size: 1}
	for _, l := range launchers {
		if _, ok := lookup(l.rank); !ok {
			continue
		}
		if err := p.readRank(lookup, l.rank, l.sizes); err != nil {
			return Place{}, err
		}
		break
	}
	if text, ok := lookup(EnvKey); ok {
		key, err := hex.DecodeString(text)
		if err != nil || len(key) == 0 {
			// The error omits the value, which is secret.
			return Place{}, errors.New("rendezvous: " + EnvKey + " is not hexadecimal")
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
		return Place{}, fmt.Errorf(
			"rendezvous: no server address for %d processes: set %s or SLURM_JOB_NODELIST",
			p.Size, EnvAddr)
	}
	return p, nil
}

// readRank reads the rank and size from the variables of one launcher.
func (p *Place) readRank(lookup func(string) (string, bool), rank string, sizes []string) (err error) {
	if p.Rank, err = lookupNumber(lookup, rank); err != nil {
		return err
	}
	for _, size := range sizes {
		if _, ok := lookup(size); !ok {
			continue
		}
		if p.Size, err = lookupNumber(lookup, size); err != nil {
			return err
		}
		if p.Rank >= p.Size {
			return fmt.Errorf("rendezvous: %s is %d, but %s is %d", rank, p.Rank, size, p.Size)
		}
		return nil
	}
	return fmt.Errorf("rendezvous: %s is set, but not %s", rank, strings.Join(sizes, ", nor "))
}

// lookupNumber returns the value of a variable, which must be a non-negative integer.
func lookupNumber(lookup func(string) (string, bool), name string) (int, error) {
	text, _ := lookup(name)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("rendezvous: %s is %q, want a number", name, text)
	}
	return n, nil
}

// firstHost returns the first host in a list in Slurm's syntax. For "node[01-04,7],login" it returns "node01".
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
