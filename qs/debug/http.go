package debug

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// ServeHTTP serves the page and probes. Probes are paths that end in /healthz or /readyz. They
// respond with status 200 or 503: /healthz succeeds while every class on the page is open, and
// /readyz while every class is also ready, that is, until SetReady(false) is called or a drain
// begins.
//
// Any other path serves the page, with the URL parameters described by Query. The page refreshes
// itself, even without JavaScript. With the parameter format=json, or if the client accepts
// application/json but not HTML, the response is the Snapshot as JSON. With format=text, or if the
// client accepts text/plain but not HTML, it is plain text. All links are relative, so the page may
// be mounted at any path. Guard is called first, except for probes.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if name := path.Base(r.URL.Path); name == "healthz" || name == "readyz" {
		p.answerProbe(w, name)
		return
	}
	if p.Guard != nil && !p.Guard(w, r) {
		return
	}
	var b bytes.Buffer
	var err error
	s, kind := p.Snapshot(parseQuery(r.URL.Query())), contentTypeOf(r)
	switch kind {
	case "application/json":
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		err = e.Encode(s)
	case "text/plain":
		err = s.writeText(&b)
	default:
		err = pageTemplate.Execute(&b, pageData{Snapshot: s, Style: style, Script: script})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind+"; charset=utf-8")
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("Vary", "Accept")
	h.Set("Referrer-Policy", "no-referrer")
	setNoStore(h)
	_, _ = w.Write(b.Bytes())
}

// setNoStore disables caching of the response by clients and proxies, and content sniffing by
// browsers.
func setNoStore(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// answerProbe responds to the probe with the given name with status 200 or 503. healthz succeeds if
// every class on the page has an open context, and readyz if all classes are ready. Both fail if
// there are no classes.
func (p *Page) answerProbe(w http.ResponseWriter, name string) {
	all := p.allSources()
	good := len(all) > 0
	for _, s := range all {
		good = good && (name == "readyz" && s.isReady() || name == "healthz" && s.isOpen())
	}
	text := "ok"
	if !good {
		text = "not " + map[string]string{"readyz": "ready", "healthz": "open"}[name]
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if setNoStore(w.Header()); !good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, text)
}

// contentTypeOf returns the media type of the response to r, which is that of HTML, JSON or plain
// text.
func contentTypeOf(r *http.Request) string {
	accept := r.Header.Get("Accept")
	html := strings.Contains(accept, "text/html")
	switch format := r.URL.Query().Get("format"); {
	case format == "json" || format == "" && !html && strings.Contains(accept, "application/json"):
		return "application/json"
	case format == "text" || format == "" && !html && strings.Contains(accept, "text/plain"):
		return "text/plain"
	}
	return "text/html"
}

//go:embed page.html
var pageText string

//go:embed page.css
var style template.CSS

//go:embed page.js
var script template.JS

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"bytes": bytesText, "took": durationText, "rate": rateText, "spark": newSparkline, "parts": splitName,
}).Parse(pageText))

// splitName splits the name of a method or a peer after each of its first slashes. The browser may
// break lines there if a column is narrow.
func splitName(name string) []string { return strings.SplitAfterN(name, "/", maxNameParts) }

const maxNameParts = 4

// contentPolicy is the Content-Security-Policy of the page. It permits only the inline style and
// script.
var contentPolicy = fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	cspHash(string(style)), cspHash(string(script)))

func cspHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// A pageData is the data of the HTML template.
type pageData struct {
	Snapshot
	Style  template.CSS
	Script template.JS
}

// A link is a hyperlink on the page.
type link struct{ Text, Link string }

// Shows reports whether the page includes the list with the given name.
func (v pageData) Shows(name string) bool { return v.Query.View == "" || v.Query.View == name }

// About reports whether the page is restricted to a method, to a peer, or by a filter.
func (v pageData) About() bool {
	return v.Query.Method != "" || v.Query.Peer != "" || v.Query.Filter != ""
}

// Overview reports whether the page shows all lists without restriction.
func (v pageData) Overview() bool { return v.Query.View == "" && !v.About() }

// Link returns a link to the page with the given query parameters changed. See Query.linkWith.
func (v pageData) Link(changes ...string) string { return v.Query.linkWith(changes...) }

// Home returns a link to the overview.
func (v pageData) Home() string { return Query{All: v.Query.All}.withDefaults().linkWith() }

// OfMethod returns a link to the overview of a method.
func (v pageData) OfMethod(name string) string {
	return Query{All: v.Query.All, Method: name}.withDefaults().linkWith()
}

// OfPeer returns a link to the overview of a peer.
func (v pageData) OfPeer(address string) string {
	return Query{All: v.Query.All, Peer: address}.withDefaults().linkWith()
}

// MethodLink returns a link to the overview of the method, with its name as the text.
func (v pageData) MethodLink(name string) link { return link{name, v.OfMethod(name)} }

// PeerLink returns a link to the overview of the peer, with its label as the text.
func (v pageData) PeerLink(label, address string) link { return link{label, v.OfPeer(address)} }

// Hidden returns the query parameters that the filter form must preserve as hidden fields.
func (v pageData) Hidden() (all []struct{ Name, Value string }) {
	u, _ := url.ParseQuery(strings.TrimPrefix(v.Query.linkWith("q", ""), "?"))
	for _, name := range slices.Sorted(maps.Keys(u)) {
		all = append(all, struct{ Name, Value string }{name, u.Get(name)})
	}
	return all
}

// A listLink is a navigation link to a list or to the overview.
type listLink struct {
	Title, Link string
	Total       int // number of rows, or -1 if not applicable
	Current     bool
}

// Lists returns links to the overview and to each list.
func (v pageData) Lists() []listLink {
	all := []listLink{{"overview", v.Link("view", "", "sort", ""), -1, v.Query.View == ""}}
	for _, name := range views {
		total, _ := v.countRows(name)
		title := name
		if name == "calls" {
			title = "under way"
		}
		all = append(all, listLink{title, v.Link("view", name, "sort", ""), total, v.Query.View == name})
	}
	return all
}

// countRows returns the total number of rows in the list with the given name, and the number shown
// on the page.
func (v pageData) countRows(name string) (total, rows int) {
	switch name {
	case "calls":
		return v.Calls.Total, len(v.Calls.Rows)
	case "streams":
		return v.Streams.Total, len(v.Streams.Rows)
	case "methods":
		return v.Methods.Total, len(v.Methods.Rows)
	case "errors":
		return v.Errors.Total, len(v.Errors.Rows)
	}
	return v.Peers.Total, len(v.Peers.Rows)
}

// A columnHead is a column heading.
type columnHead struct{ Title, Class, Link, Sorted string }

// headings holds the name, title and CSS class of each column, by list. Only the columns returned
// by Sorts are sortable. The columns that identify a row come first, followed by those that change
// most, because a small screen has no room for the others.
var headings = map[string][][3]string{
	"calls": {{"method", "method", "id"}, {"peer", "peer", "id"}, {"age", "age", "n"}, {"state", "state", ""}, {"kind", "what", "wide"}, {"moved", "moved", ""}, {"trace", "trace", "wide"}},
	"streams": {{"method", "method", "id"}, {"peer", "peer", "id"}, {"stuck", "stuck for", "n"}, {"waiting", "waiting", "n"}, {"age", "age", "n"}, {"items", "items", "n"}, {"bytes", "bytes", "n"},
		{"kind", "what", "wide"}, {"trace", "trace", "wide"}},
	"errors": {{"count", "count", "n"}, {"error", "error", ""}, {"method", "method", ""}, {"kind", "what", "wide"}, {"text", "text of the last", "text"}, {"last", "last", ""}, {"first", "first", "wide"},
		{"peer", "peer", ""}, {"fate", "fate", "wide"}, {"took", "took", "wide n"}, {"trace", "trace", "wide"}},
	"methods": {{"method", "method", "id"}, {"kind", "what", "id"}, {"per_second", "each s, 1 min", "n"}, {"errors", "errors, 10 min", "n"}, {"p50", "p50, 1 min", "n"}, {"p99", "p99, 1 min", "n"},
		{"under_way", "under way", "n"}, {"history", "history", ""}, {"per_second_10m", "each s, 10 min", "n"}, {"p50_10m", "p50, 10 min", "n wide"}, {"p99_10m", "p99, 10 min", "n wide"},
		{"sent", "sent, 1 min", "n wide"}, {"received", "received", "n wide"}, {"count", "in all", "n wide"}},
	"peers": {{"peer", "peer", "id"}, {"per_second", "each s, 1 min", "n"}, {"errors", "errors, 1 min", "n"}, {"requests", "requests", "n"}, {"calls", "calls", "n"}, {"waiting", "waiting", "n"},
		{"transport", "by", ""}, {"verified", "certificate", "wide"}, {"sent", "sent, 1 min", "n wide"}, {"received", "received", "n wide"}, {"held", "envelopes held here", "n wide"},
		{"free", "free there", "n wide"}, {"stalls", "stalls", "n wide"}},
}

// Columns returns the column headings of a list. The link of a heading sorts the list by that
// column, in descending order or, if the list is already sorted by it, in reverse order.
func (v pageData) Columns(name string) (all []columnHead) {
	for _, c := range headings[name] {
		h := columnHead{Title: c[1], Class: c[2]}
		sort := "-" + c[0]
		if v.Query.View == name {
			switch v.Query.Sort {
			case c[0]:
				h.Sorted = "ascending"
			case "-" + c[0]:
				h.Sorted, sort = "descending", c[0]
			}
		}
		if slices.Contains(Sorts(name), c[0]) {
			h.Link = v.Link("view", name, "sort", sort)
		}
		all = append(all, h)
	}
	return all
}

// A paging holds the range of rows shown on the page and links to other ranges of the list. A link
// is empty if its range has no rows.
type paging struct {
	Total, First, Last int
	All, Before, After string
}

// Pages returns the paging information of a list.
func (v pageData) Pages(name string) paging {
	total, rows := v.countRows(name)
	p := paging{Total: total}
	if rows > 0 {
		p.First, p.Last = v.Query.Offset+1, v.Query.Offset+rows
	}
	if v.Query.View != name {
		if rows < total {
			p.All = v.Link("view", name, "sort", "")
		}
		return p
	}
	if v.Query.Offset > 0 {
		p.Before = v.Link("sort", v.Query.Sort, "offset", strconv.Itoa(max(v.Query.Offset-v.Query.Limit, 0)))
	}
	if p.Last > 0 && p.Last < total {
		p.After = v.Link("offset", strconv.Itoa(p.Last))
	}
	return p
}

// writeText writes s as plain text for a terminal.
func (s *Snapshot) writeText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s, process %d on %s, %s\n", s.Process.Name, s.Process.PID, s.Process.Host, s.Time.Format(time.DateTime))
	fmt.Fprintln(w, "uses "+s.Process.Usage.InWords())
	for _, c := range s.Causes {
		fmt.Fprintf(w, "%s: %s\n", strings.ToUpper(c.Kind), c.Text)
	}
	for _, c := range s.Contexts {
		fmt.Fprintf(w, "\ncontext %d at %s: %d peers, %d left, %d lost, %d of %d handlers at work, %d of %d streams open, %d waiting, %d queued\n",
			c.ID, c.Address, c.Peers, c.Left, c.Lost, c.Active, c.MaxActive, c.Streams, c.MaxStreams, c.Waiting, c.Queued)
		fmt.Fprintf(w, "%d handles, lent %s, fetching %s, %d regions; guaranteed %s of %s, most envelopes needed %d, stalls %d\n",
			c.Handles, bytesText(c.Lent), bytesText(c.Fetching), c.Regions, bytesText(c.Reserved), bytesText(c.Budget), c.HighWater, c.Stalls)
	}
	head := func(total, rows int, columns string) {
		if total > 0 {
			fmt.Fprintf(w, "\n%s\n", columns)
		}
		if rows < total {
			fmt.Fprintf(w, "(%d of %d)\n", rows, total)
		}
	}
	head(s.Calls.Total, len(s.Calls.Rows), "under way\tage\tmethod\tpeer\tstate\tmoved\tof")
	for _, c := range s.Calls.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.Kind, durationText(c.Age), c.Method, c.Peer, c.Means, bytesText(c.Moved), bytesText(c.Size))
	}
	head(s.Streams.Total, len(s.Streams.Rows), "stream\tage\tmethod\tpeer\titems\tbytes\twaiting\tstuck for")
	for _, c := range s.Streams.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", c.Kind, durationText(c.Age), c.Method, c.Peer, c.Stream.Items, bytesText(c.Stream.Bytes),
			bytesText(c.Stream.Waiting), durationText(c.Stream.Stuck))
	}
	head(s.Methods.Total, len(s.Methods.Rows), "method\tkind\tper second\titems per second\terrors\tp50\tp99\tp50 in 10 m\tp99\tsent\treceived\tcount")
	for _, m := range s.Methods.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", m.Name, m.Kind, rateText(m.Minute.PerSecond), rateText(m.Minute.ItemsPerSecond()), m.TenMinutes.Errors, durationText(m.Minute.P50),
			durationText(m.Minute.P99), durationText(m.TenMinutes.P50), durationText(m.TenMinutes.P99), bytesText(m.Minute.Sent), bytesText(m.Minute.Received), m.Count)
	}
	head(s.Errors.Total, len(s.Errors.Rows), "error\tkind\tmethod\tcount\tfirst\tlast\tpeer\ttext")
	for _, e := range s.Errors.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%q\n", e.Error, e.Kind, e.Method, e.Count, e.First.Format(time.TimeOnly), e.Last.Format(time.TimeOnly), e.Peer, e.Text)
	}
	head(s.Peers.Total, len(s.Peers.Rows), "peer\tby\trequests\tcalls\tper second\toffered\theld\tmost\tpromised\tfree\twaiting\tneeded\tstalls\twhy")
	for _, p := range s.Peers.Rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", p.Label, p.Transport, p.Requests, p.Calls, rateText(p.Minute.PerSecond),
			p.Offered, p.Held, p.HeldMax, p.Promised, p.Free, p.Waiting, p.HighWater, p.Stalls, p.Why)
	}
	return w.Flush()
}

// durationText formats a duration with about three significant digits.
func durationText(d time.Duration) string {
	r := time.Nanosecond
	for d/r >= 1000 && r < 100*time.Millisecond {
		r *= 10
	}
	if d >= time.Minute {
		r = time.Second
	}
	return d.Round(r).String()
}

func rateText(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 10:
		return fmt.Sprintf("%.2f", r)
	}
	return fmt.Sprintf("%.0f", r)
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

// processorsText returns a description of the CPU usage.
func (u Usage) processorsText() string {
	of := countNoun(u.Processors, "processor", "processors")
	if u.CPUCovers == 0 {
		return "an unknown part of " + of
	}
	return fmt.Sprintf("%.2g of %s in %s", u.CPU, of, durationText(u.CPUCovers))
}

// ItemsPerSecond returns the number of stream items per second.
func (w Window) ItemsPerSecond() float64 { return float64(w.Items) / max(w.Covers.Seconds(), 1) }

// InWords returns a description of u, as shown on the page.
func (u Usage) InWords() string {
	return fmt.Sprintf("%s, %d goroutines, %s of memory, %s of it in objects", u.processorsText(), u.Goroutines, bytesText(u.Memory), bytesText(u.Heap))
}

// Size of a sparkline in units of its viewBox.
const sparkWidth, sparkHeight = 120, 20

// A sparkline represents a history both as a line and as text.
type sparkline struct {
	Points string // points attribute of an SVG polyline
	Words  string
}

// newSparkline returns a sparkline of counts in slots of ten seconds, with the newest at the right
// edge.
func newSparkline(counts []uint32) sparkline {
	most := uint32(1)
	for _, n := range counts {
		most = max(most, n)
	}
	var b strings.Builder
	for i, n := range counts {
		x := sparkWidth - (len(counts)-1-i)*sparkWidth/(tenMinuteSlots-2)
		fmt.Fprintf(&b, "%d,%.1f ", x, sparkHeight-1-float64(n)/float64(most)*(sparkHeight-2))
	}
	if len(counts) == 0 {
		return sparkline{Words: "no history yet"}
	}
	return sparkline{b.String(), fmt.Sprintf("each second of the last %d min: now %s, most %s", max(len(counts)/6, 1),
		rateText(float64(counts[len(counts)-1])/slotTime.Seconds()), rateText(float64(most)/slotTime.Seconds()))}
}
