package httpgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/internal/typed"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Options configures a Gate. The zero value works.
type Options struct {
	// MaxBody bounds the body of a request, in bytes, and the input in a query. Zero means 1 MiB. A longer one is refused: resource_exhausted.
	MaxBody int64
	// Timeout bounds requests that carry no Connect-Timeout-Ms, those for streams left out, with the time that their bodies take to arrive. Zero
	// means that only the end of the request does.
	Timeout time.Duration
	// Headers names the headers of a request that its call carries as metadata, under the name in lower case: "Authorization", for example.
	// The name is subject to the rules of [qs.WithMetadata].
	Headers []string
	// AllowOrigin, if set, decides whether a page of another site may use the gate, by the headers Origin and Sec-Fetch-Site of its request.
	// Nil refuses each request that a browser marks as coming from another site, by Sec-Fetch-Site or, where the page was loaded by plain
	// HTTP, by an Origin whose host is not that of the request. AllowOrigin does not answer preflight requests: wrap the Gate for that.
	AllowOrigin func(r *http.Request) bool
}

// A Method is a method that a Gate serves. Unary and Stream return one.
type Method struct {
	name   string
	types  typed.Method
	call   func(ctx context.Context, to qs.Peer, in []byte) (out any, err error)
	stream func(ctx context.Context, to qs.Peer, in []byte) (iter.Seq2[any, error], error)
}

// Unary returns m for a Gate. It panics if In has a Source or a Sink, which HTTP does not support.
func Unary[In, Out any](m *qs.Method[In, Out]) Method {
	types := parseTypes(m.Name(), m.Shape())
	return Method{name: m.Name(), types: types, call: func(ctx context.Context, to qs.Peer, b []byte) (any, error) {
		var in In
		if err := codec.Msgpack.Decode(b, &in); err != nil {
			return nil, inputError{err}
		}
		out, err := m.Call(ctx, to, in)
		return &out, err
	}}
}

// Stream returns s for a Gate, which serves it as server-sent events or lines. It panics as Unary does.
func Stream[In, Item any](s *qs.Stream[In, Item]) Method {
	types := parseTypes(s.Name(), strings.TrimSuffix(s.Shape(), " ..."))
	return Method{name: s.Name(), types: types, stream: func(ctx context.Context, to qs.Peer, b []byte) (iter.Seq2[any, error], error) {
		var in In
		if err := codec.Msgpack.Decode(b, &in); err != nil {
			return nil, inputError{err}
		}
		return func(yield func(any, error) bool) {
			for item, err := range s.Call(ctx, to, in) {
				if !yield(&item, err) {
					return
				}
			}
		}, nil
	}}
}

// parseTypes reads the types of a method, for JSON.
func parseTypes(name, shape string) typed.Method {
	types, err := typed.Parse(shape)
	if err != nil { // a type that encodes itself: its JSON carries the types of values where that is needed
		return typed.Unknown
	}
	if len(types.Sources())+len(types.Sinks()) > 0 {
		panic(fmt.Sprintf("httpgate: method %s has Sources or Sinks in its input, want none", name))
	}
	return types
}

// An inputError is the error of an input that does not match the types of a method. No request was
// sent.
type inputError struct{ error }

// Unwrap returns why.
func (e inputError) Unwrap() error { return e.error }

// An outputError is the error of an output that cannot be encoded as JSON. The handler has run.
type outputError struct{ error }

// Unwrap returns why.
func (e outputError) Unwrap() error { return e.error }

// A Gate is an http.Handler that serves methods as JSON. It serves a method under its name behind the path at which it is
// mounted: [http.StripPrefix] takes the rest away. It may be used by any number of goroutines.
//
// A plain method is POST with a body of application/json, or none for the zero value: the answer is 200 and the output. A stream is
// the same, and GET with the input in the query, as input=JSON. Its answer is server-sent events if the request accepts text/event-stream:
// each item is the data of an event, and the last event is "end", or "error" with the error in its data. Else it is lines of JSON: each is {"item": ...},
// and the last is {"end": true} or {"error": ...}; a stream without one was cut off. The header comes with the first item, so that an error before it has a status
// of its own.
//
// The header Connect-Timeout-Ms, milliseconds, is the deadline of the call, which travels to its handler. When the request is canceled the context of the
// handler ends.
//
// An error is an object of the protocol Connect: code and message, and details: the fate of the request, with the code of package qs,
// and what the handler has attached by [qs.WithDetail]. The status of HTTP follows from the code: for one of the program's own it is 500, and the
// code of Connect unknown.
type Gate struct {
	target  qs.Peer
	options Options
	methods map[string]Method
}

// New returns a Gate that calls methods at to: Node.Peer with the Addr of the node itself for its own methods, or with others. It panics if two methods
// have one name, or to is the zero Peer.
func New(to qs.Peer, o Options, methods ...Method) *Gate {
	if to == (qs.Peer{}) {
		panic("httpgate: New called with a zero Peer: use Node.Peer")
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 1 << 20
	}
	g := &Gate{target: to, options: o, methods: map[string]Method{}}
	for _, m := range methods {
		if _, ok := g.methods[m.name]; ok {
			panic(fmt.Sprintf("httpgate: method %s is registered twice", m.name))
		}
		g.methods[m.name] = m
	}
	return g
}

// ServeHTTP implements [http.Handler].
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m, ok := g.methods[strings.TrimPrefix(r.URL.Path, "/")]
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case !ok:
		g.writeNoMethod(w, strings.TrimPrefix(r.URL.Path, "/"))
		return
	case !g.isAllowedOrigin(r):
		g.writeRefusal(w, http.StatusForbidden, "permission_denied", "cross-origin request not allowed (httpgate.Options.AllowOrigin)")
		return
	case r.Method != http.MethodPost && (m.stream == nil || r.Method != http.MethodGet):
		w.Header().Set("Allow", map[bool]string{true: "GET, POST", false: "POST"}[m.stream != nil])
		g.writeRefusal(w, http.StatusMethodNotAllowed, "unimplemented", r.Method+" is not allowed for this method")
		return
	}
	ctx, stop, err := g.callContext(r, m.stream == nil)
	if err != nil {
		g.writeError(w, inputError{err})
		return
	}
	defer stop()
	text, refused := g.readInput(ctx, w, r)
	if refused {
		return
	}
	in, err := m.encodeInput(text)
	if err != nil {
		g.writeError(w, inputError{err})
		return
	}
	if m.stream != nil {
		g.serveStream(ctx, w, r, m, in)
		return
	}
	out, err := m.call(ctx, g.target, in)
	if err != nil {
		g.writeError(w, err)
		return
	}
	b, err := m.decodeOutput(out)
	if err != nil {
		g.writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // it fails if the client has gone
}

// isAllowedOrigin reports whether a request is not from a page of another site, by the headers that browsers set, or AllowOrigin allows it.
func (g *Gate) isAllowedOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "": // no browser, or one with a page that was loaded by plain HTTP, for which it sets only Origin
		origin := r.Header.Get("Origin")
		if u, err := url.Parse(origin); origin == "" || err == nil && strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	return g.options.AllowOrigin != nil && g.options.AllowOrigin(r)
}

// callContext returns the context of a call.
func (g *Gate) callContext(r *http.Request, bounded bool) (ctx context.Context, stop context.CancelFunc, err error) {
	ctx, limit := r.Context(), time.Duration(0)
	if bounded {
		limit = g.options.Timeout
	}
	if text := r.Header.Get("Connect-Timeout-Ms"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 64)
		if err != nil || len(text) > 10 {
			return nil, nil, fmt.Errorf("header Connect-Timeout-Ms is %.20q, want up to 10 digits", text)
		}
		limit = max(time.Duration(ms)*time.Millisecond, 1)
	}
	for _, name := range g.options.Headers {
		if value := r.Header.Get(name); value != "" {
			ctx = qs.WithMetadata(ctx, strings.ToLower(name), value)
		}
	}
	if limit > 0 {
		ctx, stop = context.WithTimeout(ctx, limit)
		return ctx, stop, nil
	}
	return ctx, func() {}, nil
}

// readInput returns the input in JSON. If it is refused, the request has been answered.
func (g *Gate) readInput(ctx context.Context, w http.ResponseWriter, r *http.Request) (text []byte, refused bool) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	switch inputs := query["input"]; {
	case err != nil: // the part that could not be parsed may be the input
		g.writeError(w, inputError{fmt.Errorf("malformed query: %w", err)})
		return nil, true
	case len(inputs) > 1:
		g.writeError(w, inputError{errors.New("the query has several inputs")})
		return nil, true
	case r.Method != http.MethodGet && len(inputs) > 0:
		g.writeError(w, inputError{fmt.Errorf("input in the query of a %s request, want it in the body", r.Method)})
		return nil, true
	}
	if r.Method == http.MethodGet {
		text = []byte(query.Get("input"))
	} else {
		c := http.NewResponseController(w)
		end, bounded := ctx.Deadline()
		if bounded { // a slow body is not read for longer
			_ = c.SetReadDeadline(end)
		}
		if text, err = io.ReadAll(http.MaxBytesReader(w, r.Body, g.options.MaxBody)); err != nil && !errors.As(err, new(*http.MaxBytesError)) {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				writeJSON(w, httpStatuses["deadline_exceeded"], connectError{"deadline_exceeded", "deadline exceeded while reading the request body", []connectDetail{newOutcomeDetail(qs.NotRun, qs.ErrTimeout)}})
				return nil, true
			}
			g.writeError(w, inputError{fmt.Errorf("read the request body: %w", err)})
			return nil, true
		} else if err != nil {
			text = make([]byte, g.options.MaxBody+1)
		} else if bounded {
			_ = c.SetReadDeadline(time.Time{}) // the server reads on to detect that the client closes the connection
		}
		kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if len(text) > 0 && (err != nil || kind != "application/json") {
			g.writeRefusal(w, http.StatusUnsupportedMediaType, "invalid_argument", fmt.Sprintf("Content-Type is %.60q, want application/json", r.Header.Get("Content-Type")))
			return nil, true
		}
	}
	if int64(len(text)) > g.options.MaxBody {
		g.writeRefusal(w, http.StatusRequestEntityTooLarge, "resource_exhausted", fmt.Sprintf("request body exceeds %d bytes (httpgate.Options.MaxBody)", g.options.MaxBody))
		return nil, true
	}
	if len(text) == 0 {
		text = []byte("null")
	}
	return text, false
}

// encodeInput converts an input from JSON to msgpack.
func (m *Method) encodeInput(text []byte) ([]byte, error) {
	v, err := typed.Read(text)
	if err != nil {
		return nil, err
	}
	in, err := typed.FromJSON(m.types.In, v)
	if err != nil {
		return nil, err
	}
	return codec.Msgpack.Append(nil, in.Interface())
}

// decodeOutput converts an output, or an item, to JSON.
func (m *Method) decodeOutput(out any) ([]byte, error) {
	p := reflect.New(m.types.Out)
	b, err := codec.Msgpack.Append(nil, out)
	if err == nil {
		err = codec.Msgpack.Decode(b, p.Interface())
	}
	var text string
	if err == nil {
		text, err = typed.ToJSON(p.Interface())
	}
	if err != nil {
		return nil, outputError{fmt.Errorf("output of %s: %w", m.name, err)}
	}
	return []byte(text), nil
}

// serveStream calls a stream and writes its items.
func (g *Gate) serveStream(ctx context.Context, w http.ResponseWriter, r *http.Request, m Method, in []byte) {
	items, err := m.stream(ctx, g.target, in)
	if err != nil {
		g.writeError(w, err)
		return
	}
	s := streamWriter{w: w, c: http.NewResponseController(w), isEventStream: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
	// The deadline of the call ends a write to a client that does not read. A second more is for the last line.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.c.SetWriteDeadline(time.Now().Add(time.Second))
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended // w is the server's again once this returns
		}
	}()
	for item, err := range items {
		var b []byte
		if err == nil {
			b, err = m.decodeOutput(item)
		}
		if err != nil {
			if !s.hasBegun {
				g.writeError(w, err)
				return
			}
			_ = s.writeMessage("error", newConnectError(err).marshal())
			return
		}
		if s.writeMessage("item", b) != nil { // the client has gone: the break ends the call
			return
		}
	}
	_ = s.writeMessage("end", json.RawMessage("true"))
}

// A streamWriter writes the answer of a stream.
type streamWriter struct {
	w             http.ResponseWriter
	c             *http.ResponseController
	isEventStream bool // server-sent events, else lines
	hasBegun      bool
}

// writeMessage writes an item, the end or an error. JSON of package typed has no line ends.
func (s *streamWriter) writeMessage(what string, b []byte) (err error) {
	if !s.hasBegun {
		s.hasBegun = true
		kind := "application/x-ndjson"
		if s.isEventStream {
			kind = "text/event-stream"
		}
		s.w.Header().Set("Content-Type", kind)
		s.w.Header().Set("X-Accel-Buffering", "no") // for proxies that would hold items back
	}
	switch {
	case !s.isEventStream:
		_, err = fmt.Fprintf(s.w, "{%q:%s}\n", what, b)
	case what == "item":
		_, err = fmt.Fprintf(s.w, "data: %s\n\n", b)
	default:
		_, err = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", what, b)
	}
	return errors.Join(err, s.c.Flush())
}
