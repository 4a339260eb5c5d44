package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/files"
	"github.com/quicksilver-rpc/quicksilver/cmd/qs/internal/show"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

const cpAbout = `Copies a file, or a directory and everything in it, to or from a running qs serve --root DIR.

ADDRESS/PATH is tcp://HOST:PORT/PATH: the first / after the port begins the path, which is below DIR.

A / at the end of the destination means: into this directory. A file also goes into an existing directory. A directory without that / becomes the destination itself, so you can run the same command again. Files that exist with the same size, time and mode are not copied; --anew copies them all. Mode and time of files are kept, times from 1678 to 2262. Links and devices are skipped; one at the destination is an error, and is not replaced.

SOURCE may be -, the standard input, and DESTINATION -, the standard output: then one file is copied, and it cannot be resumed; holes of an input are filled with zeros. The file of the program gets its name when all of the input has arrived.

Holes of sparse files stay holes.

The data goes to NAME.qs-part, which is renamed to NAME when it is complete and verified: NAME is never half a file. Run the same command again to resume a copy that Ctrl-C, a crash or the network has interrupted; the error says what is there, and after the network, or a program that has ended, the exit code is 3. The part is read again and compared with NAME.qs-part.journal, and so is the source. If the source has changed the copy starts over. Files of these two names that cp has not made as this user, or that others may write to, are an error and stay as they are.

Of two copies to one file at a time the first wins: the second is an error that says so, with exit code 3. One to a program takes the place of a first whose process is gone, or does not answer for a second. Of two directories copied to one place each file is whole, from one or the other.

Checksums are compared after each piece, end to end: CRC-32C, which finds damage, not an attacker; --sha256 also compares the SHA-256 of each whole file, and is slower. Without --sync the data may not be on the disk yet when cp ends.`

const cpExamples = `  qs cp big.iso tcp://10.0.0.7:9000/images/
  qs cp tcp://10.0.0.7:9000/images/big.iso .
  # the other end: qs serve --root /data --write tcp://10.0.0.7:9000
  # a directory there, and back as ./photos
  qs cp --sha256 photos tcp://10.0.0.7:9000/photos
  qs cp tcp://10.0.0.7:9000/photos photos
  tar c photos | qs cp - tcp://10.0.0.7:9000/photos.tar
  qs cp tcp://10.0.0.7:9000/photos.tar - | tar x`

// A copyResult is the JSON form of the result of qs cp.
type copyResult struct {
	Bytes    int64   `json:"bytes"` // bytes moved by this run
	Files    int     `json:"files"`
	Same     int     `json:"files_unchanged"`
	Skipped  int     `json:"skipped"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"mib_per_s"`
	Resumed  int64   `json:"resumed_bytes"`      // bytes of files that an earlier run had begun
	Checksum string  `json:"checksum,omitempty"` // checksum of the file, if a single file was copied
}

func (a *app) newCp() *cobra.Command {
	var n network
	var opts files.Options
	c := &cobra.Command{
		Use: "cp SOURCE DESTINATION", Short: "Copy files to or from a program", Long: cpAbout, Example: cpExamples, Args: wantCopy, SuggestFor: []string{"copy", "scp", "rsync", "get", "put", "upload", "download"},
		RunE: func(_ *cobra.Command, args []string) error { return a.copy(&n, opts, args[0], args[1]) },
	}
	fs := c.Flags()
	n.peerFlags(fs)
	fs.DurationVarP(&opts.Timeout, "timeout", "t", time.Minute, "`time` to wait for the answer to one request")
	fs.Int64Var(&opts.Piece, "piece", 4<<20, "`bytes` that are requested and verified at a time, 4096 to 67108864")
	fs.IntVar(&opts.Window, "window", 8, "`pieces` in flight, 1 to 16")
	fs.BoolVar(&opts.SHA256, "sha256", false, "also compare SHA-256 checksums")
	fs.BoolVar(&opts.Anew, "anew", false, "copy everything from the beginning, even what exists already")
	fs.BoolP("recursive", "r", true, "directories are always copied with all that is in them")
	_ = fs.MarkHidden("recursive")
	fs.BoolVar(&opts.Sync, "sync", false, "wait until each file is on the disk before renaming it")
	return c
}

// wantCopy returns an error unless args consists of a SOURCE and a DESTINATION.
func wantCopy(c *cobra.Command, args []string) error {
	if len(args) > 2 {
		return usageError{fmt.Sprintf("%d arguments, want one SOURCE and one DESTINATION: run qs cp for each file, or copy the directory that contains them", len(args))}
	}
	return wantArgs(2, 2)(c, args)
}

// copy copies source to destination and prints the result. Exactly one of them must be at a target.
func (a *app) copy(n *network, opts files.Options, source, destination string) error {
	switch {
	case opts.Piece < 4<<10 || opts.Piece > files.MaxPiece:
		return usageError{fmt.Sprintf("--piece is %d, want %d to %d bytes", opts.Piece, 4<<10, files.MaxPiece)}
	case opts.Window < 1 || opts.Window > files.MaxWindow:
		return usageError{fmt.Sprintf("--window is %d, want 1 to %d", opts.Window, files.MaxWindow)}
	case opts.Timeout <= 0:
		return usageError{"--timeout is not positive"}
	}
	from, err := parseLocation(source)
	if err != nil {
		return err
	}
	to, err := parseLocation(destination)
	if err != nil {
		return err
	}
	switch {
	case from.addr != "" && to.addr != "":
		return usageError{"SOURCE and DESTINATION are both remote; copy to this machine first"}
	case from.addr == "" && to.addr == "":
		return usageError{newTwoPathsError(source, destination)}
	}
	opts.Upload, opts.Into = to.addr != "", to.isIntoDir
	here, there := to, from
	if opts.Upload {
		here, there = from, to
	}
	opts.Remote = there.path
	results := a // prints the results
	finish := func() error { return nil }
	progressTo := a.stderr
	switch {
	case here.isStdio && opts.Upload && to.isIntoDir:
		return usageError{fmt.Sprintf("%q is a directory: what the standard input holds needs the name of a file", destination)}
	case here.isStdio && opts.Upload:
		opts.From = os.Stdin
	case here.isStdio:
		opts.To, finish = a.dataWriter()
		results = &app{stdout: a.stderr, isJSON: a.isJSON}
		if _, onTerminal := terminalWidth(a.stdout); onTerminal {
			progressTo = struct{ io.Writer }{a.stderr} // no progress bar among the lines of data
		}
	default:
		if opts.Folder, opts.Local, err = here.resolve(opts.Upload); err != nil {
			return err
		}
	}
	ctx, stop := a.untilSignal()
	defer stop()
	begun := time.Now()
	target, err := dial(n, there.addr)
	if err != nil {
		return err
	}
	c, err := files.NewCopier(ctx, target.node, target.peer, opts)
	if err != nil {
		return newCopyError(fmt.Errorf("copy %v: %w", from, err), files.Counts{}, here.isStdio, "")
	}
	defer c.Close()
	total := c.Bytes()
	if opts.From != nil {
		total = -1
	}
	bar := newProgress(progressTo, total, a.isJSON || progressTo != a.stderr)
	for _, s := range c.Skipped() {
		bar.Note(s + ": left out")
	}
	err = errors.Join(c.Run(ctx, bar), finish())
	bar.close()
	if err != nil {
		err = fmt.Errorf("copy %w", err)
		if dir, _, nested := splitLast(to.path); opts.Upload && nested && strings.Contains(err.Error(), files.NoDirectory) {
			err = fmt.Errorf("%w; qs cp %s %s/%s/ creates it", err, source, to.addr, dir)
		}
		kept := ""
		if files.Interrupted(err) || errors.Is(err, errInterrupted) {
			in := opts.Folder + string(os.PathSeparator)
			if opts.Upload {
				in = to.addr + "/"
			}
			kept = keptText(c.Counts(), c.State(), in)
		}
		return newCopyError(err, c.Counts(), here.isStdio, kept)
	}
	r := newCopyResult(c, time.Since(begun))
	return results.printResult(r, r.print)
}

func newCopyResult(c *files.Copier, took time.Duration) *copyResult {
	did := c.Counts()
	r := &copyResult{
		Bytes: did.Bytes, Files: did.Files, Same: did.Same, Skipped: len(c.Skipped()), Resumed: did.Resumed, Checksum: did.Sum,
		Seconds: took.Seconds(),
	}
	r.Rate = float64(r.Bytes) / (1 << 20) / r.Seconds
	return r
}

// splitLast splits path at its last slash, and reports whether there is one. Without a slash, name is the whole path.
func splitLast(path string) (dir, name string, found bool) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// newTwoPathsError returns the message for a command line in which neither path contains a program's address.
func newTwoPathsError(source, destination string) string {
	text := fmt.Sprintf("neither %s nor %s has a transport: write tcp://", source, destination)
	for _, path := range []string{destination, source} {
		if hostPort.MatchString(path) {
			return text + path
		}
	}
	return text + "HOST:PORT/PATH"
}

// keptLine is the prefix of the error message line that describes the data left by an interrupted copy.
const keptLine = "kept:   "

// keptText returns a text that describes the partial files left by an interrupted copy. The parameter did counts the
// completed work, and in is inserted before file names.
func keptText(did files.Counts, state files.State, in string) string {
	var kept []string
	if did.Files > 0 {
		kept = append(kept, countText(did.Files, "complete file"))
	}
	switch {
	case state.Name == "":
		return strings.Join(kept, "; ")
	case state.Kept > 0:
		kept = append(kept, fmt.Sprintf("%s of %s in %s%s", bytesText(state.Kept), bytesText(state.Size), in, state.Part))
	case len(kept) == 0:
		kept = append(kept, "nothing")
	}
	return fmt.Sprintf("%s; %s%s was not touched", strings.Join(kept, "; "), in, state.Name)
}

// newCopyError returns err with an exit code and with a description of what was copied and how to proceed. The
// parameter did counts the completed work, and kept is a result of keptText. If stream is true, the copy cannot be
// resumed.
func newCopyError(err error, did files.Counts, stream bool, kept string) error {
	_, answered := hg.RemoteOf(err)
	var lines []string
	if kept != "" {
		lines = append(lines, keptLine+kept)
	}
	switch {
	case files.Refused(err) && did == files.Counts{}:
		return refusedError{err}
	case answered && !files.Interrupted(err) && !errors.Is(err, errInterrupted):
		return err // the error was reported by the target, not by this machine
	case !files.Interrupted(err) && !errors.Is(err, errInterrupted) || stream && did.Bytes > 0:
		if len(lines) > 0 {
			err = show.Advise(err, lines...)
		}
		return failedError{err}
	case errors.Is(err, hg.ErrUnreachable) && did.Bytes+did.Resumed == 0:
		return err // the message already states the remedy
	case errors.Is(err, hg.ErrAgain):
		lines = append(lines, show.ToDo+"wait for that, then run the same command again")
	case did.Bytes+did.Resumed == 0:
		lines = append(lines, show.ToDo+"run the same command again")
	default:
		lines = append(lines, show.ToDo+"run the same command again: it resumes")
	}
	return repeatableError{show.Advise(err, lines...)}
}

func (r *copyResult) print(out io.Writer) {
	if r.Files == 0 && r.Bytes == 0 && r.Same > 0 && r.Skipped == 0 {
		fmt.Fprintf(out, "%s unchanged (same size, time and mode); nothing copied\n", countText(r.Same, "file"))
		return
	}
	var also []string
	if r.Resumed > 0 {
		also = append(also, bytesText(r.Resumed)+" were there from a run before")
	}
	if r.Same > 0 {
		also = append(also, countText(r.Same, "file")+" unchanged (same size, time and mode)")
	}
	if r.Skipped > 0 {
		also = append(also, fmt.Sprintf("left out: %d", r.Skipped))
	}
	if r.Checksum != "" {
		also = append(also, r.Checksum)
	}
	text := ""
	if len(also) > 0 {
		text = "; " + strings.Join(also, "; ")
	}
	fmt.Fprintf(out, "%s, %s in %.2f s, %.0f MiB/s, verified%s\n", countText(r.Files, "file"), bytesText(r.Bytes), r.Seconds, r.Rate, text)
}
