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

// Options configures a Gate. The zero value is ready to use.
type Options struct {
	// MaxBody is the maximum size, in bytes, of a request body or of the input in a query. If zero,
	// it is 1 MiB. Larger requests are refused with the code resource_exhausted.
	MaxBody int64
	// Timeout is the timeout for requests without a Connect-Timeout-Ms header. It includes the time
	// to read the body and does not apply to streams. If zero, there is no timeout, and calls end
	// at the latest when the client cancels the request.
	Timeout time.Duration
	// Headers lists the request headers, such as "Authorization", that are passed to the handler as
	// metadata, with their names in lower case. Names are subject to the rules of
	// [qs.WithMetadata].
	Headers []string
	// AllowOrigin, if not nil, reports whether a cross-origin request is allowed, based on its
	// Origin and Sec-Fetch-Site headers. If nil, all requests that a browser marks as cross-origin
	// are refused. They are recognized by Sec-Fetch-Site or, for pages loaded over plain HTTP, by
	// an Origin whose host differs from that of the request. The Gate does not respond to preflight
	// requests. To support them, wrap it in another handler.
	AllowOrigin func(r *http.Request) bool
}

// A Method is a method that a Gate can serve. Unary and Stream return Methods.
type Method struct {
	name   string
	types  typed.Method
	call   func(ctx context.Context, to qs.Peer, in []byte) (out any, err error)
	stream func(ctx context.Context, to qs.Peer, in []byte) (iter.Seq2[any, error], error)
}

// Unary returns a Method that serves m. It panics if In contains a Source or a Sink, which are not
// supported over HTTP.
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

// Stream returns a Method that serves s as server-sent events or as lines of JSON. It panics if In
// contains a Source.
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

// parseTypes parses the shape of the named method, for conversion between JSON and MessagePack.
func parseTypes(name, shape string) typed.Method {
	types, err := typed.Parse(shape)
	if err != nil { // a type encodes itself, so its JSON includes the types of values where necessary
		return typed.Unknown
	}
	if len(types.Sources())+len(types.Sinks()) > 0 {
		panic(fmt.Sprintf("httpgate: method %s has Sources or Sinks in its input, want none", name))
	}
	return types
}

// An inputError is returned for an input that does not match the types of a method. No request has
// been sent to the target.
type inputError struct{ error }

// Unwrap returns the underlying error.
func (e inputError) Unwrap() error { return e.error }

// An outputError is returned for an output that cannot be converted to JSON. The handler has run.
type outputError struct{ error }

// Unwrap returns the underlying error.
func (e outputError) Unwrap() error { return e.error }

// A Gate is an http.Handler that serves methods as JSON. The URL path is the name of the method;
// use [http.StripPrefix] to mount a Gate below another path. A Gate is safe for concurrent use.
//
// A unary method is called by a POST request with the input as an application/json body, or with an
// empty body for the zero value. The response has status 200 and contains the output.
//
// A stream is called in the same way, or by a GET request with the input in the query, as
// input=JSON. If the request accepts text/event-stream, the response consists of server-sent
// events. The data of each event is an item, and the last event is "end", or "error" with the error
// as its data. Otherwise, the response consists of lines of JSON. Each line is {"item": ...}, and
// the last line is {"end": true} or {"error": ...}. If the last line is missing, the stream was
// interrupted. The response header is written with the first item, so that an error that precedes
// it is reported with its own status.
//
// The header Connect-Timeout-Ms is the timeout of the call in milliseconds. It determines the
// deadline of the handler's context. If the HTTP request is canceled, so is the handler's context.
//
// Errors are reported as in the Connect protocol, as an object with a code, a message and details.
// The details are the fate of the request together with the code of package qs, and the detail
// attached by the handler with [qs.WithDetail], if any. The HTTP status is derived from the code.
// Codes chosen by the program are reported as unknown, with status 500.
type Gate struct {
	target  qs.Peer
	options Options
	methods map[string]Method
}

// New returns a Gate that calls methods at the Peer to. To serve the methods of a node itself, pass
// its own address to Node.Peer. New panics if two methods have the same name, or if to is the zero
// Peer.
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
	_, _ = w.Write(append(b, '\n')) // an error means that the client has disconnected
}

// isAllowedOrigin reports whether r may be served: according to the headers set by browsers it is
// not a cross-origin request, or AllowOrigin permits it.
func (g *Gate) isAllowedOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "": // not sent by a browser, or sent by a page loaded over plain HTTP, which sets only Origin
		origin := r.Header.Get("Origin")
		if u, err := url.Parse(origin); origin == "" || err == nil && strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	return g.options.AllowOrigin != nil && g.options.AllowOrigin(r)
}

// callContext returns the context for a call, with its deadline and metadata. If bounded is false,
// Options.Timeout does not apply. The caller must call stop.
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

// readInput reads the input of the request and returns it as JSON. If refused is true, readInput
// has already written an error response.
func (g *Gate) readInput(ctx context.Context, w http.ResponseWriter, r *http.Request) (text []byte, refused bool) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	switch inputs := query["input"]; {
	case err != nil: // do not ignore a malformed part, because it may be the input
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
		if bounded { // do not read a slow body beyond the deadline
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
			_ = c.SetReadDeadline(time.Time{}) // clear the deadline, because the server keeps reading to detect a closed connection
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

// encodeInput converts an input from JSON to MessagePack.
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

// decodeOutput converts an output or an item to JSON.
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

// serveStream calls a stream and writes its items to w until the stream ends or the client
// disconnects.
func (g *Gate) serveStream(ctx context.Context, w http.ResponseWriter, r *http.Request, m Method, in []byte) {
	items, err := m.stream(ctx, g.target, in)
	if err != nil {
		g.writeError(w, err)
		return
	}
	s := streamWriter{w: w, c: http.NewResponseController(w), isEventStream: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
	// A write to a client that does not read would block. When the call's deadline expires, allow
	// one more second for writing the last line.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.c.SetWriteDeadline(time.Now().Add(time.Second))
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended // w must not be used after ServeHTTP has returned
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
		if s.writeMessage("item", b) != nil { // the client has disconnected; leaving the loop ends the call
			return
		}
	}
	_ = s.writeMessage("end", json.RawMessage("true"))
}

// A streamWriter writes the response to a request for a stream.
type streamWriter struct {
	w             http.ResponseWriter
	c             *http.ResponseController
	isEventStream bool // write server-sent events instead of lines of JSON
	hasBegun      bool
}

// writeMessage writes and flushes one message. what is "item", "end" or "error", and b is its data
// as JSON without line breaks.
func (s *streamWriter) writeMessage(what string, b []byte) (err error) {
	if !s.hasBegun {
		s.hasBegun = true
		kind := "application/x-ndjson"
		if s.isEventStream {
			kind = "text/event-stream"
		}
		s.w.Header().Set("Content-Type", kind)
		s.w.Header().Set("X-Accel-Buffering", "no") // disable buffering in proxies
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
