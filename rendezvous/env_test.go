package rendezvous_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

func lookup(env string) func(string) (string, bool) {
	all := map[string]string{}
	for _, f := range strings.Fields(env) {
		k, v, _ := strings.Cut(f, "=")
		all[k] = v
	}
	return func(k string) (string, bool) { v, ok := all[k]; return v, ok }
}

func TestFromEnv(t *testing.T) {
	const slurm = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_JOB_NODELIST=node[03-04,09],login "
	for env, want := range map[string]rendezvous.Place{
		"": {Size: 1, Serve: true},
		"QS_RANK=2 QS_SIZE=4 QS_RENDEZVOUS=h:1 QS_RENDEZVOUS_KEY=00ff": {Rank: 2, Size: 4, Addr: "h:1", Secret: []byte{0, 255}},
		slurm:                            {Rank: 5, Size: 8, Addr: "node03:99"},
		slurm + "SLURM_STEP_NUM_TASKS=6": {Rank: 5, Size: 6, Addr: "node03:99"},
		slurm + "QS_RENDEZVOUS=h:1":      {Rank: 5, Size: 8, Addr: "h:1"},
		slurm + "PMI_RANK=0 PMI_SIZE=2":  {Size: 2, Addr: "node03:99", Serve: true},
		slurm + "PMIX_RANK=1 OMPI_COMM_WORLD_SIZE=3 PMI_RANK=0 PMI_SIZE=2": {Rank: 1, Size: 3, Addr: "node03:99"},
		slurm + "PMIX_RANK=7":         {Rank: 7, Size: 8, Addr: "node03:99"},
		slurm + "QS_RANK=0 QS_SIZE=1": {Size: 1, Serve: true},
	} {
		got, err := rendezvous.FromEnv(lookup(env), 99)
		require.NoError(t, err, env)
		require.Equal(t, want, got, env)
	}
	for env, why := range map[string]string{
		"QS_RANK=2":                       "QS_RANK is set, but not QS_SIZE",
		"QS_RANK=2 QS_SIZE=2":             "QS_RANK is 2, but QS_SIZE is 2",
		"QS_RANK=-1 QS_SIZE=2":            `QS_RANK is "-1", want a number`,
		"QS_RANK=1 QS_SIZE=many":          `QS_SIZE is "many", want a number`,
		"QS_RANK=1 QS_SIZE=2":             "no server address for 2 processes",
		"QS_RENDEZVOUS_KEY=secret":        "QS_RENDEZVOUS_KEY is not hexadecimal",
		"QS_RENDEZVOUS_KEY=":              "QS_RENDEZVOUS_KEY is not hexadecimal",
		"PMI_RANK=1 PMI_SIZE=2 QS_SIZE=9": "no server address",
		"SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST=node[": `SLURM_JOB_NODELIST is "node["`,
	} {
		_, err := rendezvous.FromEnv(lookup(env), 99)
		require.ErrorContains(t, err, why, env)
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"a": "a", "a,b": "a", "node[1-4]": "node1", "node[007,9-12],x": "node007", "r[1-2]n[3-4]": "r1n3", "n[5]-ib,n6": "n5-ib",
	} {
		p, err := rendezvous.FromEnv(lookup("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST="+list), 1)
		require.NoError(t, err, list)
		require.Equal(t, want+":1", p.Addr)
	}
	for _, list := range []string{"", ",a", "n[", "n[]", "n[1"} {
		_, err := rendezvous.FromEnv(lookup("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST="+list), 1)
		require.ErrorContains(t, err, "want a list of hosts", list)
	}
}

func TestStartAlone(t *testing.T) {
	m, err := rendezvous.StartIn(testContext(t), rendezvous.Options{}, lookup(""))
	require.NoError(t, err)
	defer m.Close()
	w, err := m.Exchange(testContext(t), rendezvous.Info{Addr: "here"})
	require.NoError(t, err)
	require.Equal(t, []rendezvous.Info{{Addr: "here"}}, w.Members)
	require.NoError(t, m.Leave())
}

// TestStartUnderSlurm checks that under Slurm rank 0 serves. It may leave first: the others have
// all values by then.
func TestStartUnderSlurm(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	const size = 4
	gone := make(chan struct{})
	for rank, err := range eachRank(size, func(rank int) error {
		if rank == 0 {
			defer close(gone)
		}
		env := lookup(fmt.Sprintf("SLURM_PROCID=%d SLURM_NTASKS=%d SLURM_JOB_NODELIST=127.0.0.[1-3] QS_RENDEZVOUS_KEY=1234", rank, size))
		m, err := rendezvous.StartIn(testContext(t), rendezvous.Options{Port: port}, env)
		if err != nil {
			return err
		}
		defer m.Close()
		if _, err := m.Exchange(testContext(t), rendezvous.Info{}); err != nil {
			return err
		}
		if rank != 0 {
			<-gone
			for m.Progress(time.Millisecond) == nil { // until it has the error
			}
		}
		return m.Leave()
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
}

// TestStartTimesOut checks that if the others do not start, the process that serves reports it, and
// leaves nothing behind.
func TestStartTimesOut(t *testing.T) {
	env := lookup("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_NODELIST=127.0.0.1")
	_, err := rendezvous.StartIn(testContext(t), rendezvous.Options{Port: 47077, Timeout: 100 * time.Millisecond}, env)
	require.Error(t, err)
}
