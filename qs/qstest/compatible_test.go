package qstest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/qstest"
)

// A recordingTB is a test that records how it fails.
type recordingTB struct {
	testing.TB
	errors, logs string
}

func (j *recordingTB) Helper() {}
func (j *recordingTB) Errorf(format string, args ...any) {
	j.errors += fmt.Sprintf(format, args...) + "\n"
}
func (j *recordingTB) Logf(format string, args ...any) { j.logs += fmt.Sprintf(format, args...) + "\n" }
func (j *recordingTB) Fatalf(format string, args ...any) {
	j.Errorf(format, args...)
	panic(j)
}

// A code of the program whose schema is compared.
var _ = qs.DefineCode(230, "lost")

type (
	putIn struct {
		Key  string
		Body qs.Source
		Tags []string
	}
	putOut struct{ Size int32 }
	event  struct{ At int64 }
)

// compatible returns how Compatible ends with the methods of a file for those that are given.
func compatible(t *testing.T, file string, methods ...qs.AnyMethod) (j *recordingTB) {
	j = &recordingTB{TB: t}
	defer func() {
		if p := recover(); p != nil && p != j {
			panic(p)
		}
	}()
	qstest.Compatible(j, file, methods...)
	return j
}

func TestCompatible(t *testing.T) {
	file := filepath.Join(t.TempDir(), "testdata", "api.txt")
	put, watch := qs.Define[putIn, putOut]("store/put"), qs.DefineStream[string, event]("store/watch")
	require.Contains(t, compatible(t, file, put).errors, "does not exist; create it with QUICKSILVER_UPDATE=1")
	t.Setenv(qstest.UpdateEnv, "1")
	require.Empty(t, compatible(t, file, watch, put).errors)
	t.Setenv(qstest.UpdateEnv, "")
	require.Empty(t, compatible(t, file, put, watch).errors, "in any order")
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "method store/put\ncodec msgpack\nin qstest_test.putIn{\n\tKey string\n\tBody Source\n\tTags []string\n}\nout qstest_test.putOut{\n\tSize int32\n}\n\n"+
		"stream store/watch\ncodec msgpack\nin string\ndown qstest_test.event{\n\tAt int64\n}\n\ncode 230 \"lost\"\n", string(written)[strings.Index(string(written), "\n\n")+2:])
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(written), "\n", "\r\n")), 0o666))

	const (
		oldClients = "\n\told clients, with a new server: "
		oldServers = "\n\told servers, with a new client: "
		refused    = "refused with ErrBadInput; of an input nothing runs"
		fails      = "the client fails at the answer, after the handler has run"
		protocol   = "every call is refused with ErrProtocol; nothing runs" + oldServers + "the same"
	)
	for what, row := range map[string]struct {
		put, watch qs.AnyMethod
		want       string
	}{
		"removed": {nil, watch, "store/put: the method was removed" + oldClients + "every call ends with ErrNoMethod; the handler does not exist"},
		"kind":    {qs.DefineStream[putIn, putOut]("store/put"), watch, "store/put: the kind was method and is stream" + oldClients + protocol},
		"codec":   {put, qs.DefineStream[string, []byte]("store/watch", qs.WithCodec(codec.Raw)), "store/watch: the codec was msgpack and is raw" + oldClients + protocol},
		"input, removed": {qs.Define[struct {
			Key  string
			Body qs.Source
		}, putOut]("store/put"), watch, "store/put: in.Tags ([]string) was removed" + oldClients + refused},
		"input, retyped": {qs.Define[struct {
			Key  int
			Body qs.Source
			Tags []string
		}, putOut]("store/put"), watch, "store/put: in.Key was string and is int" + oldClients + refused + oldServers + refused},
		"input, added with a struct": {qs.Define[struct {
			putIn
			At struct{ X int }
		}, putOut]("store/put"), watch, "store/put: in.At ({X int}) was added, and is sent even if it is zero: make it a pointer, or give it the tag omitempty" + oldServers + refused},
		"output, added": {qs.Define[putIn, struct {
			Size int32
			ETag string
		}]("store/put"), watch, "store/put: out.ETag (string) was added, and the client needs it: make it a pointer, or give it the tag omitempty" + oldServers + fails},
		"output, removed": {qs.Define[putIn, struct{}]("store/put"), watch, "store/put: out.Size (int32) was removed" + oldClients + fails},
		"output, wider":   {qs.Define[putIn, struct{ Size int64 }]("store/put"), watch, "store/put: out.Size was int32 and is int64" + oldClients + fails},
		"items":           {put, qs.DefineStream[string, struct{ When int64 }]("store/watch"), "store/watch: down.When (int64) was added, and the client needs it: make it a pointer, or give it the tag omitempty" + oldServers + fails},
		"fine": {qs.Define[struct {
			putIn
			More  *int
			Count int
		}, struct {
			Size int32
			ETag *string
			Note string `msgpack:",omitempty"`
		}]("store/put"), watch, "compatibly"},
	} {
		methods := []qs.AnyMethod{row.watch}
		if row.put != nil {
			methods = append(methods, row.put)
		}
		got := compatible(t, file, methods...)
		require.Contains(t, got.errors, row.want, what)
		if what != "fine" {
			require.Contains(t, got.logs, "new method name")
		}
	}
	for text, want := range map[string]string{
		"code 200 \"quota\"\n":                   "error code 200: \"quota\" was removed" + oldServers,
		"code 230 \"quota used up\"\n":           "error code 230: it was \"quota used up\" and is \"lost\": give what is new another number" + oldClients + "they take the code in its answers for \"quota used up\"" + oldServers,
		"code 230 \"lost\"\ncode 230 \"lost\"\n": "malformed line",
		"code 256 \"lost\"\n":                    "malformed line",
		"code 230\n":                             "malformed line",
		"":                                       "compatibly",
	} {
		base := strings.ReplaceAll(string(written), "code 230 \"lost\"\n", "")
		require.NoError(t, os.WriteFile(file, []byte(base+text), 0o666))
		require.Contains(t, compatible(t, file, put, watch).errors, want, text)
	}
	require.NoError(t, os.WriteFile(file, []byte("method a\ncodec msgpack\nin {\n\tA\n}\nout int\n"), 0o666))
	require.Contains(t, compatible(t, file, put).errors, "malformed line 4")
}
