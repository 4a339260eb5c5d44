package debug

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A Query selects the rows of a Snapshot. The zero value selects an overview. The URL parameters of
// the page have the same names as the JSON fields.
type Query struct {
	// View selects a single list, to which Offset and Sort apply: "calls", "streams", "methods",
	// "errors" or "peers". The other lists are empty. If View is empty, all lists are included, in
	// their default order.
	View string `json:"view,omitempty"`
	// Filter selects the rows that contain this text in a method, peer, state, error or trace,
	// ignoring case.
	Filter string `json:"q,omitempty"`
	// Method selects the rows of the method with that name. Peers are selected if the method is in
	// flight with them, or if it is one of the 16 methods most recently used with them and was
	// called in the last ten minutes. Peer selects the rows of the peer with that Address, and the
	// groups of errors whose last error involved it.
	Method string `json:"method,omitempty"`
	Peer   string `json:"peer,omitempty"`
	// Sort is the name of a column of View, prefixed with "-" for descending order. See Sorts.
	Sort string `json:"sort,omitempty"`
	// Limit is the maximum number of rows of each list, from 1 to 1,000. If zero, it is 20, or 100
	// if View is set.
	Limit int `json:"limit"`
	// Offset is the number of rows of View to skip.
	Offset int `json:"offset"`
	// All includes the library's own RPCs, for which inspect.IsBuiltIn returns true.
	All bool `json:"all,omitempty"`
}

const (
	overviewRows = 20
	viewRows     = 100
	mostRows     = 1000
)

// views holds the valid values of Query.View.
var views = []string{"calls", "streams", "methods", "errors", "peers"}

// withDefaults returns q with defaults in place of missing, invalid and out-of-range values.
func (q Query) withDefaults() Query {
	if !slices.Contains(views, q.View) {
		q.View, q.Sort, q.Offset = "", "", 0
	}
	if q.Limit <= 0 {
		if q.Limit = overviewRows; q.View != "" {
			q.Limit = viewRows
		}
	}
	// Escape the texts in the same way as those of the rows, so that they match.
	q.Filter, q.Method, q.Peer, q.Sort = printableText(q.Filter), printableText(q.Method), printableText(q.Peer), printableText(q.Sort)
	q.Limit, q.Offset = min(q.Limit, mostRows), max(q.Offset, 0)
	return q
}

// parseQuery parses the URL parameters of a page. Invalid parameters are replaced by their
// defaults.
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

// linkWith returns a link to the page, relative to its URL, with the parameters of q and the given
// changes. The arguments are pairs of a name and a value. An empty value omits the parameter.
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

// matches reports whether one of texts contains q.Filter, ignoring case, or q.Filter is empty.
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

// columnBy returns a column that is sorted by the result of value.
func columnBy[T any, V cmp.Ordered](name string, value func(*T) V) sortColumn[T] {
	return sortColumn[T]{name, func(a, b *T) int { return cmp.Compare(value(a), value(b)) }}
}

// listOf sorts rows by q.Sort and returns the range selected by q.Offset and q.Limit. rows must be
// in the list's default order. If q.View names a different list, the result contains no rows.
func listOf[T any](q Query, view string, rows []T, columns []sortColumn[T]) List[T] {
	l := List[T]{Total: len(rows), Rows: []T{}}
	if q.View != "" && q.View != view {
		return l
	}
	sorted := make([]*T, len(rows)) // sort pointers, because rows are large
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
