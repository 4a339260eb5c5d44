package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/gateway"
	"github.com/quicksilver-rpc/quicksilver/mercury/perf"
	"github.com/quicksilver-rpc/quicksilver/mercury/proc"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const mercuryAbout = `Talks to programs of C Mercury, over ofi+tcp. ACTION is call NAME [JSON], ping, rate, read, write, serve, or gateway [NAME...].

call makes one call: NAME is the name or the number of the RPC. --in and --out are the types of the arguments, separated by commas: i8 to i64, u8 to u64, f32, f64, bool, string, string? (which may be null: NULL in C) or bytes (the rest). JSON is an array of values. rate, read and write measure hg_perf_server as hg_rate, hg_bw_read and hg_bw_write do. serve is a target for those programs; it writes its address to --hostfile, where they look for it.

gateway lets programs of this module call the C processes named by --target, with --via or package mercury/gateway, and lets C clients of ADDRESS call the methods NAME of --service. It listens at ADDRESS for C and at --listen for the others. The C side has no security.`

const mercuryExamples = `  qs mercury ofi+tcp://10.0.0.7:41000 call sum '[1, 2]' --in i32,i32 --out i32
  qs mercury ofi+tcp://10.0.0.7:41000 rate
  qs mercury ofi+tcp://0.0.0.0:7001 serve --hostfile port.cfg
  qs mercury ofi+tcp://0.0.0.0:7001 gateway --target 'ofi+tcp://10.0.0.7:41000'`

func (a *app) newMercury() *cobra.Command {
	q := mercuryCommand{app: a}
	c := &cobra.Command{
		Use: "mercury ADDRESS ACTION [ARGUMENT...]", Short: "Call or measure programs of C Mercury, or be a gateway",
		Long: mercuryAbout, Example: mercuryExamples, Args: wantArgs(2, 100),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"call", "ping", "rate", "read", "write", "serve", "gateway"}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error { return q.run(args) },
	}
	fs := c.Flags()
	fs.StringVar(&q.in, "in", "", "`types` of the input of call")
	fs.StringVar(&q.res, "out", "", "`types` of the output of call")
	fs.IntVar(&q.provider, "provider", -1, "the `number` of Margo's provider; 65535 for an RPC without one")
	fs.DurationVarP(&q.timeout, "timeout", "t", 10*time.Second, "`time` that call and ping may take")
	fs.IntVarP(&q.o.Size, "size", "s", 0, "`bytes` of rate, 64 by default, and of read and write, 1 MiB")
	fs.IntVarP(&q.o.InFlight, "inflight", "n", 1, "`calls` in flight")
	fs.DurationVarP(&q.o.For, "time", "d", time.Second, "`time` to measure for")
	fs.BoolVar(&q.o.Verify, "verify", false, "check the data of read and write")
	fs.BoolVar(&q.sent, "done", false, "stop the server afterwards: hg_perf_server serves one client")
	fs.StringVar(&q.hostfile, "hostfile", "", "`file` to write the address of serve or gateway to")
	fs.StringVar(&q.via, "via", "", "`address` of a gateway to call through")
	fs.StringVarP(&q.listen, "listen", "l", "tcp://127.0.0.1:0", "`address` at which gateway listens for programs of this module")
	fs.StringVar(&q.service, "service", "", "`address` of the service whose methods C clients of gateway call")
	fs.StringArrayVar(&q.targets, "target", nil, "`address` of a C process that gateway may call, * for any; repeatable")
	q.network.peerFlags(fs)
	return c
}

// run runs the subcommand that the second argument names. The first argument is the address of a C Mercury program.
func (q *mercuryCommand) run(args []string) error {
	if q.provider < -1 || q.provider > 65535 {
		return usageError{fmt.Sprintf("--provider is %d, want 0 to 65535, or -1 for none", q.provider)}
	}
	if q.addr = args[0]; !strings.Contains(q.addr, "://") {
		return usageError{fmt.Sprintf("%q is not an address of C Mercury, want ofi+tcp://IP:PORT", q.addr)}
	}
	ctx, end := q.app.untilSignal()
	defer end()
	verb, rest := args[1], args[2:]
	switch {
	case verb == "serve" && len(rest) == 0:
		return q.runServe(ctx)
	case verb == "gateway" && (q.service == "") == (len(rest) == 0):
		return q.runGateway(ctx, rest)
	case verb == "gateway":
		return usageError{"gateway needs both --service and the names of its methods, or neither"}
	}
	n, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{Timeout: q.timeout})
	if err != nil {
		return err
	}
	defer n.Close()
	switch {
	case verb == "call" && (len(rest) == 1 || len(rest) == 2):
		err = q.runCall(ctx, n, rest)
	case verb == "ping" && len(rest) == 0:
		var took time.Duration
		if took, err = perf.Ping(ctx, n, q.addr); err == nil {
			return q.app.printResult(mercuryPing{q.addr, true, toMicros(took)}, func(out io.Writer) {
				fmt.Fprintf(out, "answered by %s after %v\n", q.addr, took.Round(time.Microsecond))
			})
		} else if errors.Is(err, mercury.ErrNoMethod) {
			return q.app.printResult(mercuryPing{Address: q.addr}, func(out io.Writer) {
				fmt.Fprintf(out, "%s is running, but is not a performance server\n", q.addr)
			})
		}
	case (verb == "rate" || verb == "read" || verb == "write") && len(rest) == 0:
		err = q.runMeasure(ctx, n, verb)
	default:
		return usageError{fmt.Sprintf("%q is not call NAME [JSON], rate, read, write, ping, serve or gateway [NAME ...]", strings.Join(args[1:], " "))}
	}
	if err == nil && q.sent {
		err = perf.Done(ctx, n, q.addr)
	}
	return err
}

// A mercuryCommand holds the command line of qs mercury.
type mercuryCommand struct {
	app      *app
	addr     string
	in, res  string
	provider int
	timeout  time.Duration
	hostfile string
	sent     bool
	o        perf.Options

	network              network
	via, listen, service string
	targets              []string
}

// A mercuryListening is the JSON form of the addresses that serve and gateway print once they are listening.
type mercuryListening struct {
	Address string `json:"address"`           // for C Mercury programs
	Gateway string `json:"gateway,omitempty"` // for programs of this module
}

// A mercuryPing is the JSON form of the result of ping.
type mercuryPing struct {
	Address     string  `json:"address"`
	PerfServer  bool    `json:"perf_server"`
	RoundTripUs float64 `json:"round_trip_us,omitempty"`
}

// A mercuryResult is the JSON form of the result of rate, read and write.
type mercuryResult struct {
	Calls   int64   `json:"calls"`
	Bytes   int     `json:"bytes"` // size of each operation, in bytes
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate_per_s"`
	MiB     float64 `json:"mib_per_s,omitempty"` // for read and write
}

// printListening prints n's address for C programs and writes it to the host file. It also prints the address of the
// gateway, if there is one, for programs of this module.
func (q *mercuryCommand) printListening(n *mercury.Node, gateway string) error {
	if q.hostfile != "" {
		if err := os.WriteFile(q.hostfile, []byte(n.Addr()+"\n"), 0o644); err != nil {
			return err
		}
	}
	return q.app.printResult(mercuryListening{n.Addr(), gateway}, func(out io.Writer) {
		fmt.Fprintln(out, n.Addr())
		if gateway != "" {
			fmt.Fprintln(out, gateway)
		}
	})
}

// runGateway forwards calls between C Mercury programs and programs of this module until ctx is done. The parameter
// names lists the methods of the service that C programs may call.
func (q *mercuryCommand) runGateway(ctx context.Context, names []string) error {
	cfg, err := q.network.newConfig(q.listen)
	if err != nil {
		return err
	}
	node, err := qs.Open(q.listen, qs.Config{HG: cfg, Inspect: true})
	if err != nil {
		return err
	}
	defer node.Close()
	c, err := mercury.Open(q.addr, mercury.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	g := gateway.New(node, c, gateway.Config{Targets: q.targets})
	if len(names) > 0 {
		service, err := node.Peer(ctx, q.service)
		if err != nil {
			return err
		}
		for _, name := range names {
			g.Forward(name, mercury.ID(name), service)
		}
	}
	if err := q.printListening(c, node.Addr().String()); err != nil {
		return err
	}
	return node.Serve(ctx)
}

// runSend calls the RPC id with the encoded input in, through a gateway if one is configured, and returns the encoded
// output.
func (q *mercuryCommand) runSend(ctx context.Context, n *mercury.Node, id uint64, in []byte) ([]byte, error) {
	if q.via == "" {
		return n.Call(ctx, q.addr, id, in)
	}
	c, err := dial(&q.network, q.via)
	if err != nil {
		return nil, err
	}
	defer c.close()
	peer, err := c.node.Peer(ctx, q.via)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	return gateway.Call(ctx, peer, q.addr, id, gateway.Raw(in))
}

func (q *mercuryCommand) runServe(ctx context.Context) error {
	n, err := mercury.Open(q.addr, mercury.Config{})
	if err != nil {
		return err
	}
	defer n.Close()
	perf.Serve(n, nil)
	if err := q.printListening(n, ""); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (q *mercuryCommand) runMeasure(ctx context.Context, n *mercury.Node, verb string) error {
	if verb == "rate" {
		r, err := perf.Rate(ctx, n, q.addr, q.o)
		if err != nil {
			return err
		}
		return q.app.printResult(mercuryResult{r.Calls, cmp.Or(q.o.Size, 64), r.Took.Seconds(), r.Rate(), 0}, func(out io.Writer) {
			fmt.Fprintf(out, "%d calls in %v: %.0f/s\n", r.Calls, r.Took.Round(time.Millisecond), r.Rate())
		})
	}
	if q.o.Size == 0 {
		q.o.Size = 1 << 20
	}
	r, err := perf.Bandwidth(ctx, n, q.addr, verb == "read", q.o)
	if err != nil {
		return err
	}
	return q.app.printResult(mercuryResult{r.Calls, q.o.Size, r.Took.Seconds(), r.Rate(), r.MiB()}, func(out io.Writer) {
		fmt.Fprintf(out, "%d transfers of %d bytes in %v: %.0f MiB/s\n", r.Calls, q.o.Size, r.Took.Round(time.Millisecond), r.MiB())
	})
}

func (q *mercuryCommand) runCall(ctx context.Context, n *mercury.Node, args []string) error {
	id, err := strconv.ParseUint(args[0], 0, 64)
	if err != nil {
		id = mercury.ID(args[0])
	}
	in, err := mercuryStruct(q.in)
	if err != nil {
		return usageError{"--in: " + err.Error()}
	}
	res, err := mercuryStruct(q.res)
	if err != nil {
		return usageError{"--out: " + err.Error()}
	}
	if len(args) > 1 {
		if err := fillStruct(in, args[1]); err != nil {
			return usageError{err.Error()}
		}
	} else if in.NumField() > 0 {
		return usageError{"--in needs an input: write the arguments as a JSON array"}
	}
	var front []byte
	skip := 0
	if q.provider >= 0 {
		id, front, skip = mercury.MargoID(args[0], uint16(q.provider)), make([]byte, 8), 4
	}
	b, err := proc.Append(front, in.Interface())
	if err != nil {
		return err
	}
	if b, err = q.runSend(ctx, n, id, b); err != nil {
		return err
	}
	switch {
	case len(b) < skip:
		return fmt.Errorf("%s does not use Margo: unexpected output % x", q.addr, b)
	case skip > 0 && [4]byte(b) != [4]byte{}:
		return fmt.Errorf("%s: Margo returned an error: %w", q.addr, &mercury.RemoteError{Code: mercury.Code(b[0])})
	}
	if err := proc.Unmarshal(b[skip:], res.Addr().Interface()); err != nil {
		return fmt.Errorf("%w; the output is % x", err, b[skip:])
	}
	values := make([]any, res.NumField())
	for i := range values {
		values[i] = res.Field(i).Interface()
	}
	line, err := json.Marshal(values)
	if err == nil {
		_, err = fmt.Fprintf(q.app.stdout, "%s\n", show.EscapeJSON(line))
	}
	return err
}

var mercuryTypes = map[string]reflect.Type{
	"i8": reflect.TypeFor[int8](), "i16": reflect.TypeFor[int16](), "i32": reflect.TypeFor[int32](), "i64": reflect.TypeFor[int64](),
	"u8": reflect.TypeFor[uint8](), "u16": reflect.TypeFor[uint16](), "u32": reflect.TypeFor[uint32](), "u64": reflect.TypeFor[uint64](),
	"f32": reflect.TypeFor[float32](), "f64": reflect.TypeFor[float64](), "bool": reflect.TypeFor[bool](), "string": reflect.TypeFor[string](),
	"string?": reflect.TypeFor[*string](), "bytes": reflect.TypeFor[[]byte](),
}

// mercuryStruct returns a struct whose field types are those in list, which is separated by commas.
func mercuryStruct(list string) (reflect.Value, error) {
	var fields []reflect.StructField
	for i, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		t := mercuryTypes[name]
		if t == nil {
			return reflect.Value{}, fmt.Errorf("invalid type %q, want i8 to i64, u8 to u64, f32, f64, bool, string, string? or bytes", name)
		}
		f := reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: t}
		if name == "bytes" {
			f.Tag = `proc:"rest"`
		}
		fields = append(fields, f)
	}
	t := reflect.StructOf(fields)
	return reflect.New(t).Elem(), proc.Check(t)
}

// fillStruct sets the fields of the struct v to the elements of a JSON array, in order.
func fillStruct(v reflect.Value, text string) error {
	var values []json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return fmt.Errorf("%q is not a JSON array: %w", text, err)
	}
	if len(values) != v.NumField() {
		return fmt.Errorf("%d values for %d types", len(values), v.NumField())
	}
	for i, value := range values {
		if string(value) == "null" && v.Field(i).Kind() != reflect.Pointer {
			return fmt.Errorf("value %d: null is valid only for the type string?", i+1)
		}
		if err := json.Unmarshal(value, v.Field(i).Addr().Interface()); err != nil {
			return fmt.Errorf("value %d: %w", i+1, err)
		}
	}
	return nil
}
