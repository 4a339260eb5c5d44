package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
)

const topAbout = `Shows what a program does, refreshed every --interval: the calls that are under way, with their age and state; its peers, with name, address and rates; and its methods, with rates and percentiles of the calls that have ended since the last look. The program must have set qs.Config.Inspect, or called hg.Class.ServeGauges. It counts what ends only while somebody looks.

Keys: q or Ctrl-C quits, with exit code 0, p pauses, s sorts by another column (rate, p99, errors, name), / filters by a part of the name of a method or peer, 1, 2 and 3 show one list alone, 0 all of them.

A program that falls silent, or ends and starts again, does not end top: it shows for how long there has been no answer, connects again, and goes on. With --once or --count that is an error.

Without a terminal it prints the lists for each look, and with --json a line of JSON. The first report comes after one --interval, since rates are of what has ended between two looks; --once prints no other.`

func (a *app) newTop() *cobra.Command {
	t := topCommand{app: a}
	c := &cobra.Command{
		Use: "top ADDRESS", Short: "Watch the calls, the peers and the methods of a program", Long: topAbout,
		Example: `  qs top tcp://10.0.0.7:9000
  qs top --sort p99 --filter shop/ tcp://10.0.0.7:9000
  qs top --once --json tcp://10.0.0.7:9000`,
		Args: wantArgs(1, 1), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error { return t.run(args[0]) },
	}
	fs := c.Flags()
	t.network.peerFlags(fs)
	fs.DurationVarP(&t.interval, "interval", "i", time.Second, "`time` between two looks, at most 10s")
	fs.IntVarP(&t.count, "count", "n", 0, "`reports` to print, and no screen; 0: until Ctrl-C")
	fs.BoolVar(&t.once, "once", false, "print one report, and no screen: as --count 1")
	fs.StringVarP(&t.view.order, "sort", "s", byRate, "`column` to sort by: rate, errors, p50, p90, p99, max, in, out or name; time and latency are p99")
	fs.StringVarP(&t.view.filter, "filter", "f", "", "show only methods and peers with this `text` in their names")
	fs.BoolVarP(&t.all, "all", "a", false, "show RPCs of Quicksilver itself, too")
	registerChoices(c, "sort", slices.Sorted(maps.Keys(sortOrders))...)
	return c
}

// A topCommand holds the flags of qs top.
type topCommand struct {
	app      *app
	network  network
	interval time.Duration
	count    int
	once     bool
	all      bool
	view     topView
}

func (t *topCommand) run(addr string) error {
	switch {
	case t.interval <= 0 || t.interval > 10*time.Second:
		return usageError{fmt.Sprintf("--interval is %v, want more than 0s and at most 10s", t.interval)}
	case t.count < 0:
		return usageError{"--count is negative"}
	case t.once && t.count > 1:
		return usageError{fmt.Sprintf("--once prints one report, --count %d more: give one of them", t.count)}
	case sortOrders[t.view.order] == "":
		found := similarNames(t.view.order, slices.Sorted(maps.Keys(sortOrders)))
		return usageError{fmt.Sprintf("--sort is %q, want rate, errors, p50, p90, p99, max, in, out or name%s", t.view.order, suggestionText(found))}
	}
	if t.view.order = sortOrders[t.view.order]; t.once {
		t.count = 1
	}
	c, err := dial(&t.network, addr)
	if err != nil {
		return err
	}
	defer c.close()
	ctx, stop := t.app.untilSignal()
	defer stop()
	screen, onScreen := underlyingFile(t.app.stdout)
	onScreen = onScreen && isTerminal(screen) && term.IsTerminal(int(os.Stdin.Fd()))
	if onScreen && !t.app.isJSON && t.count == 0 {
		return t.runScreen(ctx, c, screen)
	}
	err = t.print(ctx, c)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// A reportHandler contains the functions that pollReports calls. Polling stops when onReport or onKey returns true, or
// when any of the functions returns an error.
type reportHandler struct {
	onReport  func(now, before *gaugesSample) (done bool, err error) // before is nil for the first report
	onSilence func(text string) error                                // called every second with the time since the last answer, or with "" if the program is answering
	keys      <-chan rune                                            // may be nil
	onKey     func(key rune) (quit bool, err error)
}

// pollReports polls a program every t.interval until ctx is done or a function of f stops the polling. Calls to f are
// not delayed while the program does not answer.
func (t *topCommand) pollReports(ctx context.Context, c *client, f reportHandler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		l   *gaugesSample
		err error
	}
	answers, ask := make(chan answer, 1), make(chan struct{}, 1)
	go func() {
		for range ask {
			l, err := c.fetchGauges(ctx)
			answers <- answer{l, err}
		}
	}()
	defer close(ask)
	again, second := time.NewTicker(t.interval), time.NewTicker(time.Second)
	defer again.Stop()
	defer second.Stop()
	ask <- struct{}{}
	var before *gaugesSample
	var why error // error of the last poll, if it failed
	answered, waiting := time.Now(), true
	for {
		select {
		case <-ctx.Done():
			return nil
		case key, ok := <-f.keys:
			if !ok {
				return nil
			}
			if quit, err := f.onKey(key); quit || err != nil {
				return err
			}
		case got := <-answers:
			if waiting, why = false, got.err; why != nil {
				if ctx.Err() == nil && !t.waitsForLost(before, why) {
					return why
				}
				break
			}
			if done, err := f.onReport(got.l, before); done || err != nil {
				return err
			}
			if before == nil {
				again.Reset(t.interval) // a slow first poll must not shorten the interval
			}
			before, answered = got.l, time.Now()
		case <-second.C:
			text := ""
			if silence := time.Since(answered); before != nil && (why != nil || silence > 2*t.interval+silenceShown) {
				text = silenceText(silence, why)
			}
			if err := f.onSilence(text); err != nil {
				return err
			}
		case <-again.C:
			if !waiting {
				waiting = true
				ask <- struct{}{}
			}
		}
	}
}

// waitsForLost reports whether top should keep polling after err. That is the case if the program has answered before,
// a later request may succeed, and no number of reports was specified.
func (t *topCommand) waitsForLost(before *gaugesSample, err error) bool {
	return t.count == 0 && before != nil && !isNoMethod(err) && !files.NeedsCertificate(err)
}

// print prints reports line by line, without a full-screen view. It prints the first report one interval after the
// first poll, so that the report includes rates.
func (t *topCommand) print(ctx context.Context, c *client) error {
	shown := t.app.newStatus()
	defer shown.clear()
	printed := 0
	return t.pollReports(ctx, c, reportHandler{
		onReport: func(now, before *gaugesSample) (done bool, err error) {
			shown.clear()
			if before == nil {
				return false, nil
			}
			printed++
			return printed == t.count, t.printReport(newTopReport(c.peer.String(), now, before, t.all))
		},
		onSilence: func(text string) error {
			if text != "" {
				shown.update("%s", text)
			}
			return nil
		},
	})
}

func (t *topCommand) printReport(r *topReport) error {
	r.filter(t.view.filter)
	r.sort(t.view.order)
	if t.app.isJSON {
		return show.JSON(t.app.stdout, r)
	}
	width, onTerminal := terminalWidth(t.app.stdout)
	if !onTerminal {
		width = 0
	}
	out := bufio.NewWriter(t.app.stdout)
	r.print(func(line string) { fmt.Fprintln(out, line) }, width)
	fmt.Fprintln(out)
	return out.Flush()
}

// fetchGauges fetches a program's gauges.
func (c *client) fetchGauges(ctx context.Context) (*gaugesSample, error) {
	in, err := inspect.EncodeGaugesRequest(inspect.GaugesRequest{Watch: true})
	if err != nil {
		return nil, err
	}
	b, err := c.callReadOnly(ctx, readOnlyTimeout, "tell its gauges", inspect.GaugesRPC, in, hg.Metadata{})
	if err != nil {
		return nil, c.explainGauges(err)
	}
	l := &gaugesSample{at: time.Now()}
	l.all, err = inspect.DecodeActivity(b)
	return l, err
}

// explainGauges adds a remedy to the error returned by a program that does not report its gauges.
func (c *client) explainGauges(err error) error {
	if isNoMethod(err) {
		return fmt.Errorf("%s does not serve its gauges; set qs.Config.Inspect there, or call hg.Class.ServeGauges: %w", c.peer, err)
	}
	return c.adviseReadOnly(files.Explain(c.peer, err), "")
}

// runScreen displays the full-screen view until the user quits or a signal is received.
func (t *topCommand) runScreen(ctx context.Context, c *client, screen *os.File) error {
	in := int(os.Stdin.Fd())
	was, err := term.MakeRaw(in)
	if err != nil {
		return err
	}
	fmt.Fprint(screen, "\x1b[?1049h\x1b[?25l") // switch to the alternate screen and hide the cursor
	defer func() {
		fmt.Fprint(screen, "\x1b[?25h\x1b[?1049l")
		_ = term.Restore(in, was)
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keys := make(chan rune)
	go readKeys(os.Stdin, keys, ctx.Done())
	v := &t.view
	v.styled, v.message = hasColors(), "connecting to "+c.peer.String()
	if err := t.drawScreen(screen); err != nil {
		return err
	}
	return t.pollReports(ctx, c, reportHandler{
		onReport: func(now, before *gaugesSample) (done bool, err error) {
			if v.message = ""; !v.paused || v.report == nil {
				v.report = newTopReport(c.peer.String(), now, before, t.all)
			}
			return false, t.drawScreen(screen)
		},
		onSilence: func(text string) error {
			if text != "" {
				v.message = text
			}
			return t.drawScreen(screen)
		},
		keys: keys,
		onKey: func(key rune) (quit bool, err error) {
			if v.handleKey(key) {
				return true, nil
			}
			return false, t.drawScreen(screen)
		},
	})
}

// drawScreen draws the view at the terminal's current size.
func (t *topCommand) drawScreen(screen *os.File) error {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	_, err = io.WriteString(screen, drawCommands(t.view.render(width, height)))
	return err
}

// skipSequence reads and discards the rest of an escape sequence, which has the form ESC [ ... LETTER, ESC O LETTER, or
// ESC LETTER.
func skipSequence(in *bufio.Reader) error {
	b, err := in.ReadByte()
	if err == nil && b == 'O' {
		_, err = in.ReadByte()
	} else if err == nil && b == '[' {
		for b = 0; err == nil && (b < '@' || b > '~'); {
			b, err = in.ReadByte()
		}
	}
	return err
}

// readKeys sends typed keys to keys until the input ends or done is closed. It discards escape sequences, such as those
// of the arrow keys.
func readKeys(from io.Reader, keys chan<- rune, done <-chan struct{}) {
	defer close(keys)
	in := bufio.NewReader(from)
	for {
		key, _, err := in.ReadRune()
		if err != nil {
			return
		}
		if key == 0x1b && in.Buffered() > 0 {
			if skipSequence(in) != nil {
				return
			}
			continue
		}
		select {
		case keys <- key:
		case <-done:
			return
		}
	}
}
