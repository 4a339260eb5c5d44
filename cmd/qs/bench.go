package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/bench"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/load"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
)

const benchAbout = `Calls a method of any program again and again, and reports the rate, the latencies, and the errors by code and fate. The calls really run: a method that changes something changes it each time. The input is as in qs call: JSON, @FILE, or - for the standard input; without it the zero value. It is encoded once, and outputs are not decoded.

In a closed loop a server that stalls is asked less, so that few calls see the stall. In an open loop calls are due at fixed times and their latency begins then, so that every call that was due during the stall has its part of it in its latency; the service time is from the send. Calls that are due while -c are in flight wait, and that counts, too.

Percentiles are of calls that succeeded; those that failed are counted by code and fate. --compare FILE prints the ratios to an earlier run and which of them are beyond the noise of both. The exit code is 1 if a call failed, whatever the ratios are. Ctrl-C ends the run and prints what it has, with exit code 130. Streams, and methods that take a Source or a Sink, cannot be loaded.

One core sends about 400,000 small calls a second, as a bare loop of callbacks does; --connections uses more cores. A server on the same machine shares them.`

const benchExamples = `  qs bench ADDRESS greet '"Ada"'     # 50 in flight for 10 s (closed loop)
  # the latency of one call after the other
  qs bench -c 1 ADDRESS greet '"Ada"'
  # 2000 calls a second, whatever the server does (open loop)
  qs bench --rate 2000 -d 1m ADDRESS greet '"Ada"'
  # so many calls; inputs in turn, one JSON value on each line of the file
  qs bench -n 100000 --lines ADDRESS greet @names.txt
  # two nodes, with four connections to each
  qs bench --node ADDRESS2 --connections 4 ADDRESS greet '"Ada"'
  # 4096 bytes to a method with codec raw
  qs bench --raw --size 4096 ADDRESS put
  # ratios of two runs, and which are beyond the noise
  qs bench --json ADDRESS greet '"Ada"' >before.json
  qs bench --compare before.json ADDRESS greet '"Ada"'
  # two runs that have ended: the ratios are of after.json to before.json
  qs bench --compare before.json after.json`

// A benchCommand holds the flags and state of qs bench.
type benchCommand struct {
	callCommand
	cfg           load.Config
	nodes         []string
	size          int
	lines         bool
	compare       string
	baselineGiven func(flag string) bool // reports whether a flag is set on the command line
}

func (a *app) newBench() *cobra.Command {
	b := &benchCommand{callCommand: callCommand{app: a}}
	c := &cobra.Command{
		Use: "bench ADDRESS METHOD [JSON]", Short: "Load a method of a program, and measure its calls", Long: benchAbout, Example: benchExamples,
		Args: b.wantArgs, ValidArgsFunction: b.network.completeMethods, SuggestFor: []string{"load", "loadtest", "stress", "benchmark", "hey", "ghz"},
		RunE: func(_ *cobra.Command, args []string) error { return b.runBench(args) },
	}
	fs := c.Flags()
	b.baselineGiven = fs.Changed
	b.network.peerFlags(fs)
	fs.DurationVar(&b.network.spin, "spin", 50*time.Microsecond, "`time` to poll before sleeping, while answers come fast, as programs do by default; 0 for none")
	fs.IntVarP(&b.cfg.Concurrency, "concurrency", "c", 0, "`calls` in flight at most, over all connections; default 50, with --rate 1000")
	fs.IntVar(&b.cfg.Connections, "connections", 1, "`connections` to each node, each driven by a goroutine of its own")
	fs.DurationVarP(&b.cfg.Duration, "time", "d", 0, "`time` of the run; default 10s, with -n without limit")
	fs.Int64VarP(&b.cfg.Count, "count", "n", 0, "`calls` to make; with -d the run ends with the first of both")
	fs.Float64VarP(&b.cfg.Rate, "rate", "q", 0, "`calls` a second at fixed times (open loop); 0: each call is followed by the next (closed loop)")
	fs.DurationVar(&b.cfg.Warmup, "warmup", 0, "`time` of calls before those that are reported; connections are made before both")
	fs.DurationVarP(&b.cfg.Timeout, "timeout", "t", 10*time.Second, "`time` that each call may take from its send; it travels with the call. Making a connection may take --peer-timeout at most")
	fs.StringArrayVar(&b.nodes, "node", nil, "`ADDRESS` of one more node, which gets its part of the calls; repeatable")
	fs.VarP(&b.metaFlag, "meta", "m", "`NAME=VALUE`: metadata of each call, such as a token; repeatable")
	fs.BoolVar(&b.lines, "lines", false, "the input has one JSON value on each line, which calls take in turn")
	fs.IntVarP(&b.size, "size", "s", -1, "`bytes` of input to make up: for --raw, or a method that takes []byte")
	fs.Lookup("size").DefValue = "0" // the help must not show a default
	fs.BoolVar(&b.isRaw, "raw", false, "send the input unchanged: for methods with codec raw")
	fs.BoolVar(&b.oneWay, "oneway", false, "the method is one-way; needed only if the program does not publish its types")
	fs.StringVar(&b.compare, "compare", "", "`FILE` with the JSON of an earlier run of the same settings, to compare with: other settings are refused before the run; the FILE of a later run may take the place of ADDRESS and METHOD")
	return c
}

// wantArgs checks the number of arguments. With --compare, a single argument is allowed, which
// names the result file of a run to compare.
func (b *benchCommand) wantArgs(c *cobra.Command, args []string) error {
	if b.compare != "" && len(args) == 1 && !strings.Contains(args[0], "://") && !hostPort.MatchString(args[0]) {
		return nil
	}
	return wantMethod(c, args)
}

// compareRuns compares the run recorded in the named file with an earlier one and prints the
// differences.
func (b *benchCommand) compareRuns(name string) error {
	before, err := readResult(b.compare)
	if err != nil {
		return err
	}
	after, err := readResult(name)
	if err != nil {
		return err
	}
	after.CompareWith(before, b.compare, name)
	if b.app.isJSON {
		err = show.JSON(b.app.stdout, after)
	} else {
		err = after.Report(b.app.stdout)
	}
	if err == nil && len(after.Settings) > 0 {
		err = errors.New("the settings of the runs differ: NOT COMPARED")
	}
	if err != nil {
		return failedError{err}
	}
	return nil
}

// runBench generates the load and prints the result.
func (b *benchCommand) runBench(args []string) error {
	if len(args) == 1 {
		return b.compareRuns(args[0])
	}
	if err := newAddressError(args); err != nil {
		return err
	}
	b.method = args[1]
	b.cfg.Nodes = append([]string{args[0]}, b.nodes...)
	var err error
	for _, m := range b.metaFlag {
		if b.meta, err = b.meta.With(m.name, m.value); err != nil {
			return usageError{"--meta: " + err.Error()}
		}
	}
	if err := b.checkFlags(); err != nil {
		return err
	}
	var before *load.Result
	if b.compare != "" {
		if before, err = readResult(b.compare); err != nil {
			return err
		}
	}
	ctx, stop := b.app.untilSignal()
	defer stop()
	if err := b.prepareInputs(ctx, args[2:]); err != nil {
		return err
	}
	if before != nil {
		now := b.cfg.Settings()
		if other := load.ChangedSettings(before, &now); len(other) > 0 {
			return usageError{fmt.Sprintf("--compare: the run of %s has different settings: %s; no call was made", b.compare, strings.Join(other, "; "))}
		}
	}
	begun := time.Now()
	res, err := b.runLoad(ctx)
	res.Began, res.Version = begun, newBuildReport().Version
	if err != nil && res.Calls == 0 || errors.Is(err, load.ErrRefused) && res.Succeeded == 0 {
		return err
	}
	if before != nil {
		res.CompareWith(before, b.compare, "this run")
	}
	if b.app.isJSON {
		err = errors.Join(err, show.JSON(b.app.stdout, &res))
	} else {
		err = errors.Join(err, res.Report(b.app.stdout))
	}
	if err == nil && res.Failed > 0 {
		err = fmt.Errorf("%d of %d calls failed", res.Failed, res.Calls)
	}
	if err != nil {
		return failedError{err}
	}
	return context.Cause(ctx)
}

// Limits of the values of qs bench flags.
const (
	maxInFlight    = 100_000
	maxConnections = 256
	maxRate        = 10_000_000
)

// checkFlags validates the flags and sets the defaults of flags that are not on the command line.
func (b *benchCommand) checkFlags() error {
	c := &b.cfg
	for flag, value := range map[string]int64{"concurrency": int64(c.Concurrency), "time": int64(c.Duration), "count": c.Count} {
		if b.baselineGiven(flag) && value <= 0 {
			return usageError{fmt.Sprintf("--%s is not positive", flag)}
		}
	}
	if c.Concurrency == 0 {
		c.Concurrency = 50
		if c.Rate > 0 {
			c.Concurrency = 1000
		}
		c.Concurrency = max(c.Concurrency, c.Connections*len(c.Nodes))
	}
	if c.Duration == 0 && c.Count == 0 {
		c.Duration = 10 * time.Second
	}
	first, err := parseAddr(c.Nodes[0])
	if err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(first, "://")
	for i, addr := range c.Nodes {
		addr, err := parseAddr(addr)
		if err != nil {
			return err
		}
		c.Nodes[i] = addr
		if !strings.HasPrefix(addr, scheme+"://") {
			return usageError{fmt.Sprintf("%s and %s: want the same transport for all nodes", c.Nodes[0], addr)}
		}
	}
	switch {
	case c.Warmup < 0:
		return usageError{"--warmup is negative"}
	case c.Timeout <= 0:
		return usageError{"--timeout is not positive"}
	case !(c.Rate >= 0 && c.Rate <= maxRate):
		return usageError{fmt.Sprintf("--rate is %v, want 0 to %d", c.Rate, maxRate)}
	case c.Connections < 1 || c.Connections > maxConnections:
		return usageError{fmt.Sprintf("--connections is %d, want 1 to %d", c.Connections, maxConnections)}
	case c.Concurrency > maxInFlight:
		return usageError{fmt.Sprintf("-c is %d, want 1 to %d", c.Concurrency, maxInFlight)}
	case c.Concurrency < c.Connections*len(c.Nodes):
		return usageError{fmt.Sprintf("-c is %d, want at least the number of connections, %d", c.Concurrency, c.Connections*len(c.Nodes))}
	case b.size < -1 || b.size > 64<<20:
		return usageError{fmt.Sprintf("--size is %d, want 0 to %d", b.size, 64<<20)}
	case b.size >= 0 && b.lines:
		return usageError{"--size and --lines exclude each other"}
	}
	return nil
}

// prepareInputs reads the input, fetches the description of the method from the first node, and
// encodes the input according to it. It stores the result in b.cfg.
func (b *benchCommand) prepareInputs(ctx context.Context, args []string) (err error) {
	switch {
	case b.size >= 0 && len(args) > 0:
		return usageError{"--size and an input exclude each other"}
	case b.lines && len(args) == 0:
		return usageError{"--lines needs an input: @FILE or -"}
	case b.size < 0:
		b.text = []byte("null")
		if len(args) > 0 {
			if b.text, err = readArgument(args[0]); err != nil {
				return failedError{fmt.Errorf("cannot read the input: %w: NOT sent", err)}
			}
		} else if b.isRaw {
			b.text = nil
		}
	}
	texts := [][]byte{b.text}
	if b.lines {
		if texts = splitLines(b.text); len(texts) == 0 {
			return usageError{"the input of --lines is empty; NOT sent"}
		}
	}
	values := make([]any, len(texts))
	if !b.isRaw && b.size < 0 {
		for i, text := range texts {
			if values[i], err = typed.Read(text); err != nil {
				return b.newInputError(i, err.Error())
			}
		}
	}
	if b.c, err = dial(&b.network, b.cfg.Nodes[0]); err != nil {
		return err
	}
	defer b.c.close()
	b.timeout, b.c.timeout = b.cfg.Timeout, b.cfg.Timeout
	about, err := b.describe(ctx)
	if err != nil {
		return err
	}
	if len(args) == 0 && b.size < 0 {
		b.noteNoInput("bench", &about)
	}
	switch {
	case about.stream, len(about.Sources())+len(about.Sinks()) > 0:
		return usageError{fmt.Sprintf("%s is a stream, or takes a Source or a Sink: qs bench cannot call it; NOT sent", b.method)}
	case b.isRaw:
		if b.size >= 0 {
			texts = [][]byte{bench.Pattern(b.size)}
		}
		for i, text := range texts {
			if err := b.checkRaw(&about, text); err != nil {
				return b.newInputError(i, err.Error())
			}
		}
	case about.codec != "msgpack":
		return usageError{fmt.Sprintf("%s has the codec %s, which has no JSON form; use --raw; NOT sent", b.method, about.codec)}
	default:
		if texts, err = b.encodeInputs(&about, values); err != nil {
			return err
		}
	}
	b.cfg.Inputs = texts
	b.cfg.Method, b.cfg.OneWay, b.cfg.Meta = b.method, b.oneWay, b.meta
	return nil
}

// splitLines returns the non-empty lines of text.
func splitLines(text []byte) (lines [][]byte) {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines = append(lines, line)
		}
	}
	return lines
}

// newInputError returns the error for input i, counting from 0.
func (b *benchCommand) newInputError(i int, text string) error {
	if b.lines {
		text = fmt.Sprintf("line %d: %s", i+1, text)
	}
	return usageError{text}
}

// encodeInputs encodes each of values as the method's input type.
func (b *benchCommand) encodeInputs(about *methodDescription, values []any) (all [][]byte, err error) {
	if b.size >= 0 {
		in := reflect.New(about.In)
		switch {
		case about.In == reflect.TypeFor[typed.Free](), about.In.Kind() != reflect.Slice || about.In.Elem().Kind() != reflect.Uint8:
			return nil, usageError{fmt.Sprintf("--size is for --raw, and for methods that take []byte; %s takes another or an unknown type; NOT sent", b.method)}
		}
		in.Elem().SetBytes(bench.Pattern(b.size))
		one, err := codec.Msgpack.Append(nil, in.Interface())
		return [][]byte{one}, err
	}
	for i, v := range values {
		in, err := about.newInput(v)
		if err != nil {
			return nil, b.newInputError(i, err.Error())
		}
		one, err := codec.Msgpack.Append(nil, in.Interface())
		if err != nil {
			return nil, failedError{fmt.Errorf("%w: NOT sent", err)}
		}
		all = append(all, one)
	}
	return all, nil
}

// runLoad opens a class, runs the load that b.cfg describes and returns the measurements.
func (b *benchCommand) runLoad(ctx context.Context) (load.Result, error) {
	cfg, err := b.network.newConfig(b.cfg.Nodes[0])
	if err != nil {
		return load.Result{}, err
	}
	cfg.NA.Contexts, cfg.NA.SendQueue = b.cfg.Connections, max(b.cfg.Concurrency, 8192)
	if b.cfg.Class, err = hg.Open(b.network.clientAddr(b.cfg.Nodes[0]), cfg); err != nil {
		return load.Result{}, err
	}
	defer b.cfg.Class.Close()
	b.cfg.GiveUp = b.network.timeout
	shown, last := b.app.newStatus(), load.Snapshot{}
	b.cfg.Progress = func(now load.Snapshot) {
		shown.update("%s", now.Line(last, b.cfg.Warmup))
		last = now
	}
	res, err := load.Run(ctx, b.cfg)
	shown.clear()
	var unreachable *load.ConnectError
	switch {
	case errors.As(err, &unreachable) && errors.Is(err, hg.ErrUnreachable):
		err = files.Explain(unreachable.Node, unreachable.Err)
	case errors.Is(err, load.ErrRefused):
		err = b.c.adviseError(b.method, err)
	}
	return res, err
}

// readResult reads the result of an earlier run from the named JSON file.
func readResult(name string) (*load.Result, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--compare: %w", err)
	}
	res := &load.Result{}
	if err := json.Unmarshal(text, res); err != nil || res.Method == "" {
		return nil, fmt.Errorf("--compare: %s is not output of qs bench --json: %w", name, cmp.Or(err, errors.New("the method is missing")))
	}
	return res, nil
}
