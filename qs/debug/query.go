package debug

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A Query selects the rows of a Snapshot. The zero value is an overview. The parameters of the page
// have the same names as its JSON.
type Query struct {
	// View chooses one list, "calls", "streams", "methods", "errors" or "peers", to which Offset
	// and Sort apply, and leaves the others empty. Empty means all of them from their beginning, in
	// their own order.
	View string `json:"view,omitempty"`
	// Filter keeps the rows with this text in any case: in a method, a peer, a state, an error or a
	// trace.
	Filter string `json:"q,omitempty"`
	// Method keeps the rows of that method, and the peers with which it is under way or was called
	// in the last ten minutes, if it is one of the last 16 methods of that peer. Peer keeps the
	// rows of the peer with that Address, and the groups of errors whose last one was with it.
	Method string `json:"method,omitempty"`
	Peer   string `json:"peer,omitempty"`
	// Sort is the name of a column of View, with "-" before it for the largest first. See Sorts.
	Sort string `json:"sort,omitempty"`
	// Limit is the maximum number of rows of each list: 1 to 1,000, 0 for 20, or 100 with a View.
	Limit int `json:"limit"`
	// Offset is the number of rows of View to skip.
	Offset int `json:"offset"`
	// All includes the RPCs of the library, for which inspect.IsBuiltIn is true.
	All bool `json:"all,omitempty"`
}

const (
	overviewRows = 20
	viewRows     = 100
	mostRows     = 1000
)

// views are the names of the lists.
var views = []string{"calls", "streams", "methods", "errors", "peers"}

// withDefaults returns q with defaults for the values that are missing or out of range.
func (q Query) withDefaults() Query {
	if !slices.Contains(views, q.View) {
		q.View, q.Sort, q.Offset = "", "", 0
	}
	if q.Limit <= 0 {
		if q.Limit = overviewRows; q.View != "" {
			q.Limit = viewRows
		}
	}
	// because the texts of rows are, too
	q.Filter, q.Method, q.Peer, q.Sort = printableText(q.Filter), printableText(q.Method), printableText(q.Peer), printableText(q.Sort)
	q.Limit, q.Offset = min(q.Limit, mostRows), max(q.Offset, 0)
	return q
}

// parseQuery parses the parameters of a page. An invalid parameter gets its default.
func parseQuery(v url.Values) Query {
	number := func(name string) int {
		n, _ := strconv.Atoi(v.Get(name))
		return n
	}
	return Query{
		View: v.Get("view"), Filter: v.Get("q"), Method: v.Get("method"), Peer: v.Get("peer"), Sort: v.Get("sort"),
		Limit: number("limit"), Offset: number("offset"), All: v.Has("all"),
	}.withDefaults()
}

// linkWith returns the parameters of q, relative to the page, with some of them changed: name,
// value, …; an empty value leaves one out.
func (q Query) linkWith(changes ...string) string {
	v := url.Values{}
	set := func(name, value string) {
		if v.Del(name); value != "" {
			v.Set(name, value)
		}
	}
	set("view", q.View)
	set("q", q.Filter)
	set("method", q.Method)
	set("peer", q.Peer)
	set("sort", q.Sort)
	if q.All {
		set("all", "1")
	}
	if q.Limit != (Query{View: q.View}).withDefaults().Limit {
		set("limit", strconv.Itoa(q.Limit))
	}
	for i := 0; i+1 < len(changes); i += 2 {
		set(changes[i], changes[i+1])
	}
	return "?" + v.Encode()
}

// matches reports whether q.Filter keeps a row with these texts.
func (q Query) matches(texts ...string) bool {
	if q.Filter == "" {
		return true
	}
	want := strings.ToLower(q.Filter)
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), want) })
}

// A sortColumn is a column by which rows can be sorted.
type sortColumn[T any] struct {
	name    string
	compare func(a, b *T) int
}

// columnBy returns a column whose values are compared as cmp.Compare does.
func columnBy[T any, V cmp.Ordered](name string, value func(*T) V) sortColumn[T] {
	return sortColumn[T]{name, func(a, b *T) int { return cmp.Compare(value(a), value(b)) }}
}

// listOf sorts and cuts rows, which are in their own order, as q wants.
func listOf[T any](q Query, view string, rows []T, columns []sortColumn[T]) List[T] {
	l := List[T]{Total: len(rows), Rows: []T{}}
	if q.View != "" && q.View != view {
		return l
	}
	sorted := make([]*T, len(rows)) // the rows themselves are large
	for i := range rows {
		sorted[i] = &rows[i]
	}
	name, down := strings.CutPrefix(q.Sort, "-")
	for _, c := range columns {
		if c.name == name {
			slices.SortStableFunc(sorted, func(a, b *T) int {
				if down {
					return c.compare(b, a)
				}
				return c.compare(a, b)
			})
		}
	}
	sorted = sorted[min(q.Offset, len(sorted)):]
	for _, row := range sorted[:min(q.Limit, len(sorted))] {
		l.Rows = append(l.Rows, *row)
	}
	return l
}
