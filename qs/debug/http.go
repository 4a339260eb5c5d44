package debug

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes": bytesText, "took": took, "old": func(d time.Duration) bool { return d >= time.Second },
}).Parse(pageText))

// ServeHTTP answers paths that end in /healthz and /readyz with 200 or 503, for probes: healthz while every class that is shown is open, readyz
// while every one is ready, too, which SetReady(false) and a drain end. Otherwise it answers with a page that renews itself, also without JavaScript; with text when the path ends in .txt, or the client
// accepts text/plain and no HTML; with the Snapshot as JSON when the path ends in .json, or the client accepts application/json and
// no HTML. Page and text leave out calls of RPCs that inspect.IsBuiltIn reports, but for errors, unless the query has "all".
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if name := path.Base(r.URL.Path); name == "healthz" || name == "readyz" {
		p.probe(w, name)
		return
	}
	var b bytes.Buffer
	var err error
	s, kind := view{Snapshot: p.Snapshot()}, kindOf(r)
	if kind != "application/json" && !r.URL.Query().Has("all") {
		s.leaveOut()
	}
	switch kind {
	case "application/json":
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		err = e.Encode(s.Snapshot)
	case "text/plain":
		err = s.text(&b)
	default:
		err = page.Execute(&b, s)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind+"; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'")
	_, _ = w.Write(b.Bytes())
}

// A view is a Snapshot for people.
type view struct {
	Snapshot
	LeftOut bool // the RPCs of this module
}

// leaveOut leaves out the RPCs of this module, in which a program's own would be lost, but for errors.
func (v *view) leaveOut() {
	v.LeftOut = true
	v.Methods = slices.DeleteFunc(v.Methods, func(m Method) bool { return inspect.IsBuiltIn(m.Name) })
	for i := range v.Contexts {
		c := &v.Contexts[i]
		c.Calls = slices.DeleteFunc(c.Calls, func(k Call) bool { return inspect.IsBuiltIn(k.RPC) })
	}
}

// probe answers 200, or 503: healthz while a class that is shown has a context that is not closed, readyz while all are ready.
func (p *Page) probe(w http.ResponseWriter, name string) {
	p.mu.Lock()
	classes := slices.Clone(p.classes)
	p.mu.Unlock()
	good := len(classes) > 0
	for _, class := range classes {
		if name == "readyz" {
			good = good && hghook.IsReady(class)
		} else {
			good = good && slices.ContainsFunc(class.Contexts(), func(c *hg.Context) bool { return !c.NA().Closed() })
		}
	}
	text := "ok"
	if !good {
		text = "not " + map[string]string{"readyz": "ready", "healthz": "open"}[name]
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if !good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, text)
}

// kindOf returns the media type that a client wants.
func kindOf(r *http.Request) string {
	accept := r.Header.Get("Accept")
	html := strings.Contains(accept, "text/html")
	switch ext := path.Ext(r.URL.Path); {
	case ext == ".json" || !html && ext != ".txt" && strings.Contains(accept, "application/json"):
		return "application/json"
	case ext == ".txt" || !html && strings.Contains(accept, "text/plain"):
		return "text/plain"
	}
	return "text/html"
}

// text writes s for a terminal.
func (s *view) text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if s.LeftOut {
		fmt.Fprint(w, "calls of Quicksilver itself (hg/..., qs/...) are left out: ?all shows them\n\n")
	}
	for i := range s.Contexts {
		c := &s.Contexts[i]
		fmt.Fprintf(w, "context %d at %s: %d peers, %d left, %d lost, %d handlers at work, %d waiting, %d queued\n", c.Context, c.Address, len(c.Peers), c.Left, c.Lost, c.Active, c.Waiting, c.Queued)
		fmt.Fprintf(w, "%d handles, lent %s, fetching %s, %d regions; guaranteed %s of %s, most envelopes needed %d, stalls %d\n\n",
			c.Handles, bytesText(c.Lent), bytesText(c.Pulled), c.Regions, bytesText(c.Reserved), bytesText(c.Budget), c.HighWater, c.Stalls)
		fmt.Fprintln(w, "under way\tmethod\tpeer\tstate\tage\tmoved")
		for _, k := range c.Calls {
			moved := ""
			if k.Size > 0 {
				moved = bytesText(k.Moved) + " of " + bytesText(k.Size)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", k.Kind, k.RPC, k.Peer, k.State, took(k.Age), moved)
		}
		if c.More > 0 {
			fmt.Fprintf(w, "and %d more\n", c.More)
		}
		fmt.Fprintln(w, "\npeer\tby\toffered\theld\tmost\tpromised\tfree\twaiting\tneeded\tstalls\twhy")
		for _, p := range c.Peers {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", p.Label, p.Transport, p.Offered, p.Held, p.HeldMax, p.Promised, p.Free, p.Queued, p.HighWater, p.Stalls, p.Why)
		}
		fmt.Fprintln(w)
	}
	if len(s.Methods) > 0 {
		fmt.Fprintln(w, "ended\tmethod\tcount\terrors\tmean\tp50\tp90\tp99\tmost")
	}
	for _, m := range s.Methods {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", m.Kind, m.Name, m.Count, m.Errors, took(m.Mean()), took(m.P50), took(m.P90), took(m.P99), took(m.Most))
	}
	if len(s.Errors) > 0 {
		fmt.Fprintln(w, "\nerror\tkind\tmethod\tpeer\twhat\tfate\ttook")
	}
	for _, e := range s.Errors {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Format(time.TimeOnly), e.Kind, e.RPC, e.Peer, e.Text, e.Fate, took(e.Took))
	}
	return w.Flush()
}

// took writes a time with about three digits.
func took(d time.Duration) string {
	r := time.Nanosecond
	for d/r >= 1000 && r < 100*time.Millisecond {
		r *= 10
	}
	return d.Round(r).String()
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
