package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
	"github.com/quicksilver-rpc/quicksilver/na"
)

const callAbout = `Calls a method of any program.

Input and output are JSON, converted by the types that the program publishes if it sets qs.Config.Inspect ("qs rpcs ADDRESS" lists them). The output of one call can be the input of another. Bytes are base64; times and big numbers look as in encoding/json; durations are "1.5s" or nanoseconds; floats may be "NaN". Without JSON the input is the zero value; @FILE reads it from a file, - or @- from the standard input, which nothing else reads. Input that does not fit the types is not sent. Where no type is known, a number with a dot is a float, and {"$bytes": BASE64}, {"$time": ...}, {"$float": "NaN"} and {"$map": [[KEY, VALUE], ...]} stand for what JSON lacks.

--source and --sink lend a file in a field of the input; Sources and Sinks that are not named are empty. The file of a sink is replaced only when the call has succeeded. A method with Sinks prints its output, without the bytes. A one-way method prints nothing; a stream prints its items, one on a line. --timeout covers all of them, and Ctrl-C ends them; --count ends a stream behind so many items, with exit code 0.

The exit code says what became of the request: 0, it succeeded; 1, it failed on this machine; 2, it did not run and never will as it is; 3, it did not run and may be repeated; 4, it may have run; 5, the handler's answer is an error. To rehearse them, call the methods of qs serve.`

const callExamples = `  qs call tcp://10.0.0.7:9000 greet '"Ada"'
  qs call tcp://10.0.0.7:9000 add '{"A": 1, "B": 2}'
  qs call tcp://10.0.0.7:9000 shop/order @order.json --timeout 3s
  # a stream: an item on each line, until it ends, or behind 5 items
  qs call tcp://10.0.0.7:9000 count '{"N": 9, "Interval": "200ms"}'
  qs call tcp://10.0.0.7:9000 log/tail --count 5 --timeout 0
  qs call tcp://10.0.0.7:9000 upload --source Body=photo.jpg -m token=bread
  # with --json errors are objects, with code, fate and exit_code
  qs call tcp://10.0.0.7:9000 shop/report --json > report.json 2> error.json`

// A callCommand holds the flags and state of qs call.
type callCommand struct {
	app        *app
	network    network
	timeout    time.Duration // 0: no limit
	count      int           // number of stream items to print; 0: all
	isRaw      bool
	metaFlag   fieldFlags
	sourceFlag fieldFlags
	sinkFlag   fieldFlags

	c       *client
	method  string
	input   any // parsed, but not yet converted to the method's type
	text    []byte
	meta    hg.Metadata
	oneWay  bool
	sources []lentFile
	sinks   []lentFile
}

func (a *app) newCall() *cobra.Command {
	k := &callCommand{app: a, text: []byte("null")}
	c := &cobra.Command{
		Use: "call ADDRESS METHOD [JSON]", Short: "Call a method, in JSON", Long: callAbout, Example: callExamples,
		Args: wantMethod, ValidArgsFunction: k.network.completeMethods, SuggestFor: []string{"request", "req", "invoke", "send", "sub", "subscribe", "stream", "pub", "publish", "curl"},
		RunE: func(_ *cobra.Command, args []string) error { return k.run(args) },
	}
	fs := c.Flags()
	k.network.peerFlags(fs)
	fs.DurationVarP(&k.timeout, "timeout", "t", 10*time.Second, "`time` that the call may take, 0 for no limit; it travels with the call. Making the connection may take --peer-timeout at most")
	fs.IntVarP(&k.count, "count", "n", 0, "`items` after which a stream is ended; 0: all")
	fs.BoolVarP(&k.isRaw, "raw", "r", false, "send the third argument and print the output unchanged: for methods with codec raw")
	fs.BoolVar(&k.oneWay, "oneway", false, "the method is one-way; needed only if the program does not publish its types")
	fs.VarP(&k.metaFlag, "meta", "m", "`NAME=VALUE`: metadata of the call, such as a token; repeatable")
	fs.Var(&k.sourceFlag, "source", "`FIELD=FILE`: the method reads the file, - is the standard input; repeatable")
	fs.Var(&k.sinkFlag, "sink", "`FIELD=FILE`: the method writes the file, - is the standard output, and the output goes to the standard error; repeatable")
	return c
}

func (k *callCommand) run(args []string) error {
	if err := newAddressError(args); err != nil {
		return err
	}
	k.method = args[1]
	switch {
	case k.timeout < 0:
		return usageError{"--timeout is negative"}
	case k.count < 0:
		return usageError{"--count is negative"}
	}
	if k.isRaw && len(k.sourceFlag)+len(k.sinkFlag) > 0 {
		return usageError{"--source and --sink are for methods that take msgpack, not for --raw"}
	}
	err := k.parseCommandLine(args[2:])
	if err != nil {
		return err
	}
	for _, m := range k.metaFlag {
		if k.meta, err = k.meta.With(m.name, m.value); err != nil {
			return usageError{"--meta: " + err.Error()}
		}
	}
	defer k.closeFiles()
	if err := k.openSources(k.sourceFlag); err != nil {
		return failedError{fmt.Errorf("%w: NOT sent", err)}
	}
	if k.c, err = dial(&k.network, args[0]); err != nil {
		return err
	}
	defer k.c.close()
	k.c.timeout = k.timeout
	ctx, stop := k.app.untilSignal()
	defer stop()
	if k.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.timeout)
		defer cancel()
	}
	about, err := k.describe(ctx)
	if err != nil {
		return err
	}
	if len(args) == 2 {
		k.noteNoInput("call", &about)
	}
	out := k.app.stdout
	switch {
	case k.count > 0 && k.c.missingTypes != "":
		return usageError{fmt.Sprintf("--count is for streams: %s: the kind of %s is not known; NOT sent", k.c.missingTypes, k.method)}
	case k.count > 0 && !about.stream:
		return usageError{fmt.Sprintf("--count is for streams, and %s is not a stream; NOT sent", k.method)}
	case k.isRaw && about.stream:
		return usageError{fmt.Sprintf("%s is a stream, and --raw is for methods; NOT sent", k.method)}
	case k.isRaw:
		if err := k.checkRaw(&about, k.text); err != nil {
			return err
		}
		return k.callRaw(ctx)
	case about.codec != "msgpack":
		return usageError{fmt.Sprintf("%s has the codec %s, which has no JSON form; use --raw; NOT sent", k.method, about.codec)}
	case about.stream, len(k.sourceFlag)+len(k.sinkFlag) > 0:
		return k.callLending(ctx, about, k.sinkFlag, out)
	}
	return k.callTyped(ctx, about, out)
}

// parseCommandLine reads the input argument and, unless --raw is set, parses it.
func (k *callCommand) parseCommandLine(args []string) (err error) {
	switch {
	case len(args) > 0:
		if k.text, err = readArgument(args[0]); err != nil {
			return failedError{fmt.Errorf("cannot read the input: %w: NOT sent", err)}
		}
	case k.isRaw:
		k.text = nil
	}
	if k.isRaw {
		return nil
	}
	if k.input, err = typed.Read(k.text); err != nil {
		return usageError{err.Error()}
	}
	return nil
}

// readArgument returns the data for an input argument. For - and @- it reads standard input, and for @FILE it reads the
// file. Otherwise it returns text itself.
func readArgument(text string) ([]byte, error) {
	switch name, file := strings.CutPrefix(text, "@"); {
	case text == "-", text == "@-":
		return io.ReadAll(os.Stdin)
	case file:
		return os.ReadFile(name)
	}
	return []byte(text), nil
}

// newHandle returns a handle for a call to the method.
func (k *callCommand) newHandle() (*hg.Handle, error) {
	if err := k.closeHandle(); err != nil {
		return nil, err
	}
	id, err := k.c.context.Class().RegisterRPC(hg.RPC{Name: k.method, Codec: codec.Msgpack, OneWay: k.oneWay})
	if err != nil {
		return nil, err
	}
	h, err := k.c.context.Create(k.c.peer, id)
	if err != nil {
		return nil, err
	}
	return h, h.SetMeta(k.meta)
}

// closeHandle unregisters the method, so that it can be registered again with another codec. It has no effect if the
// method is neither registered by this program nor built in.
func (k *callCommand) closeHandle() error {
	if _, ok := k.c.context.Class().Registered(k.method); !ok {
		return nil
	}
	return k.c.context.Class().Deregister(hg.HashName(k.method))
}

// callRaw makes a call whose input and output are uninterpreted bytes, and prints the output.
func (k *callCommand) callRaw(ctx context.Context) error {
	h, err := k.newHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	b, err := h.CallRaw(ctx, k.text)
	if err != nil {
		return k.c.adviseError(k.method, err)
	}
	out, flush := k.app.dataWriter()
	if _, onTerminal := terminalWidth(k.app.stdout); onTerminal && (!utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0) {
		return ranError{fmt.Errorf("the output of %s is %d bytes of binary data; redirect it to a file or a pipe; the method ran", k.method, len(b))}
	}
	_, err = out.Write(b)
	return newOutputError(k.method, errors.Join(err, flush()))
}

// callTyped makes a call to a method that lends no memory, using the method's types, and writes its output to out.
func (k *callCommand) callTyped(ctx context.Context, about methodDescription, out io.Writer) error {
	in, err := about.newInput(k.input)
	if err != nil {
		return err
	}
	h, err := k.newHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.Call(ctx, in.Interface(), nil); err != nil || k.oneWay {
		if remote, ok := hg.RemoteOf(err); ok && about.builtIn && remote.Refused && remote.Code == na.ErrProtocol { // the program uses codec raw
			if string(k.text) == "null" {
				k.text = nil
			}
			return k.callRaw(ctx)
		}
		return k.c.adviseError(k.method, err)
	}
	b, err := h.OutputRaw()
	if err != nil {
		return k.c.adviseError(k.method, err)
	}
	return about.printMethod(out, b)
}

// adviseError returns err with advice for the user: the method, whether the request ran, and a remedy.
func (c *client) adviseError(method string, err error) error {
	if errors.As(err, &usageError{}) || errors.As(err, &unansweredError{}) || err == nil {
		return err
	}
	code := hg.CodeOf(err)
	var lines []string
	remote, answered := hg.RemoteOf(err)
	if code == hg.ErrUnreachable {
		return files.Explain(c.peer, err)
	}
	if answered {
		code = remote.Code
		var v typed.Free
		if remote.Detail(&v) == nil {
			if text, err := typed.ToJSON(v); err == nil {
				lines = append(lines, "detail: "+string(show.EscapeJSON([]byte(text))))
			}
		}
	}
	fate := hg.FateOf(err)
	what := adviceFor(code, fate, answered, c.peer.String())
	if answered && code == hg.ErrNoMethod && fate != hg.Ran {
		what = c.listingAdvice(method)
	}
	if answered {
		if _, todo, ok := c.explainKind(method, remote); ok {
			what = todo
		}
	}
	if call, ok := errors.AsType[*hg.Error](err); ok {
		err = show.Reword(err, strings.Replace(err.Error(), call.Error(), c.describeFailure(method, call, fate), 1))
	}
	lines = append([]string{fmt.Sprintf("code:   %d, %v", uint8(code), code)}, lines...)
	return show.Advise(err, append(lines, "to do:  "+what)...)
}

// describeFailure returns a text that describes a call's error and its fate.
func (c *client) describeFailure(method string, call *hg.Error, fate hg.Fate) string {
	what := files.SayUnanswered(c.peer, call)
	remote, answered := hg.RemoteOf(call)
	switch {
	case answered:
		verb := "answers"
		if remote.Refused {
			verb = "refuses"
		}
		text, _, ok := c.explainKind(method, remote)
		if !ok {
			text = cmp.Or(remote.Text, remote.Code.Error())
		}
		what = fmt.Sprintf("%s %s: %s", c.peer, verb, text)
	case hg.CodeOf(call) == hg.ErrTimeout:
		what = fmt.Sprintf("%s did not answer within %v", c.peer, c.timeout)
	case errors.Is(call, errInterrupted):
		what = fmt.Sprintf("interrupted before %s answered", c.peer)
	}
	return method + ": " + what + "; " + fateClause(fate)
}

// fateClause returns a text that describes whether a request ran.
func fateClause(fate hg.Fate) string {
	return map[hg.Fate]string{hg.Ran: "it ran", hg.NotRun: "it did NOT RUN", hg.MaybeRan: "it MAY HAVE RUN"}[fate]
}

// adviceFor returns the remedy for a call that failed with the given code and fate. The answered parameter reports
// whether the target returned the error. A code returned by the library has a single meaning, but a handler may return
// it for any reason.
func adviceFor(code hg.Code, fate hg.Fate, answered bool, addr string) string {
	switch {
	case code == hg.ErrTimeout && fate == hg.NotRun && !answered:
		return "it did not run: retry it, or give it more time with --timeout; qs ping " + addr + " shows whether it answers"
	case code == hg.ErrTimeout && fate == hg.Ran:
		return "give it more time with --timeout; it ran, so check before you retry it"
	case code == hg.ErrTimeout && fate == hg.MaybeRan:
		return "give it more time with --timeout; it may have run, so check before you retry it"
	case answered && fate == hg.NotRun && (code == hg.ErrBadInput || code == na.ErrProtocol):
		return "check its codec and input (qs rpcs " + addr + "); --raw is for codec raw, --oneway for one-way methods"
	case code == hg.ErrBadInput && fate == hg.Ran:
		return "the method ran and did not accept its input: see the text, and qs rpcs " + addr
	case fate == hg.Ran:
		return "the method ran and returned this error; see its text"
	case code == hg.ErrPermission:
		return "present a certificate that the program allows: --cert and --key"
	case answered && fate == hg.NotRun && isFinal(code):
		return "it did not run, and a retry alone will fail again: correct the cause first"
	case fate == hg.NotRun:
		return "it did not run: retry it, or correct the cause"
	}
	return "it may have run: check before you retry it"
}

// isFinal reports whether a refusal with the given code is permanent, so that retrying the call cannot succeed. See
// qs.Refuse.
func isFinal(code hg.Code) bool {
	switch code {
	case hg.ErrNotFound, hg.ErrAlreadyExists, hg.ErrBadInput, hg.ErrDenied, hg.ErrOverflow, hg.ErrInvalid, hg.ErrUnsupported,
		hg.ErrPermission, na.ErrProtocol:
		return true
	}
	return code >= 128 // a code defined by the program
}
