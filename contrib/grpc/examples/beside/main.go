// Command beside benchmarks one gRPC service over grpc-go and over Quicksilver, between two
// processes on this machine. It alternates between the two and prints medians and their ratios.
//
//	go run ./examples/beside -rounds 5
//
// The service is that of grpc-go's interoperability tests. In the output, "unix" is grpc-go over a
// unix socket.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	rounds  = flag.Int("rounds", 5, "how often each row is measured")
	second  = flag.Duration("time", time.Second, "how long a row of calls takes")
	items   = flag.Int("items", 1_000_000, "messages of a stream")
	only    = flag.String("rows", "", "only rows whose names contain this")
	serving = flag.String("serve", "", "internal: run as the server over this transport")
	dir     = flag.String("dir", "", "internal: directory for sockets and certificates")
)

func main() {
	flag.Parse()
	var err error
	if *serving != "" {
		err = serve(*serving)
	} else {
		err = measure()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A service echoes the payloads of its requests.
type service struct {
	testgrpc.UnimplementedTestServiceServer
}

func (service) UnaryCall(_ context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{Payload: in.Payload}, nil
}

func (service) StreamingOutputCall(
	in *testgrpc.StreamingOutputCallRequest,
	s testgrpc.TestService_StreamingOutputCallServer,
) error {
	out := &testgrpc.StreamingOutputCallResponse{Payload: in.Payload}
	for range in.ResponseParameters[0].Size {
		if err := s.Send(out); err != nil {
			return err
		}
	}
	return nil
}

func (service) StreamingInputCall(s testgrpc.TestService_StreamingInputCallServer) error {
	n := 0
	for {
		if _, err := s.Recv(); err == io.EOF {
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: int32(n)})
		} else if err != nil {
			return err
		}
		n++
	}
}

func (service) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error {
	out := &testgrpc.StreamingOutputCallResponse{}
	for {
		in, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			out.Payload = in.Payload
			err = s.Send(out)
		}
		if err != nil {
			return err
		}
	}
}

// tlsConfig returns the TLS configuration of both client and server, with the certificate in -dir.
func tlsConfig() *tls.Config {
	cert, err := tls.LoadX509KeyPair(filepath.Join(*dir, "cert"), filepath.Join(*dir, "key"))
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	leaf, _ := x509.ParseCertificate(cert.Certificate[0])
	pool.AddCert(leaf)
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	}
}

func writeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err = os.WriteFile(filepath.Join(*dir, "cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(
		filepath.Join(*dir, "key"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		0o600,
	)
}

// config returns the configuration of a Quicksilver node for the given transport.
func config(over string) qs.Config {
	c := qs.Config{Logger: slog.New(slog.DiscardHandler)}
	switch over {
	case "qs-sm":
		c.HG.NA.Plugins = []hg.Plugin{sm.New(sm.Options{Dir: *dir})}
	case "qs-tls":
		c.TLS = tlsConfig()
	}
	return c
}

// serve runs the server over one transport. It prints its address and serves until stdin is closed.
func serve(over string) error {
	done := make(chan error, 1)
	switch over {
	case "grpc", "grpc-unix", "grpc-tls":
		network, addr := "tcp", "127.0.0.1:0"
		if over == "grpc-unix" {
			network, addr = "unix", filepath.Join(*dir, "socket")
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			return err
		}
		var opts []grpc.ServerOption
		if over == "grpc-tls" {
			opts = append(opts, grpc.Creds(credentials.NewTLS(tlsConfig())))
		}
		s := grpc.NewServer(opts...)
		testgrpc.RegisterTestServiceServer(s, service{})
		fmt.Println(l.Addr())
		go func() { done <- s.Serve(l) }()
	default:
		addr := "tcp://127.0.0.1:0"
		if over == "qs-sm" {
			addr = "sm://*"
		}
		node, err := qs.Open(addr, config(over))
		if err != nil {
			return err
		}
		testgrpc.RegisterTestServiceServer(grpcqs.NewServer(node), service{})
		fmt.Println(node.Addr())
		go func() { done <- node.Serve(context.Background()) }()
	}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		done <- err
	}()
	return <-done
}

// A side is a client of the service over one transport, together with its server process.
type side struct {
	name string
	tc   testgrpc.TestServiceClient
	stop func()
}

// open starts a server process and returns a client connected to it.
func open(over string) (*side, error) {
	s := &side{name: over}
	cmd := exec.Command(os.Args[0], "-serve", over, "-dir", *dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, err
	}
	s.stop = func() { _ = stdin.Close(); _ = cmd.Wait() }
	var addr string
	if _, err = fmt.Fscanln(stdout, &addr); err != nil {
		return nil, err
	}
	switch over {
	case "grpc", "grpc-unix", "grpc-tls":
		creds := insecure.NewCredentials()
		if over == "grpc-tls" {
			creds = credentials.NewTLS(tlsConfig())
		}
		if over == "grpc-unix" {
			addr = "unix:" + addr
		}
		cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
		if err != nil {
			return nil, err
		}
		s.tc = testgrpc.NewTestServiceClient(cc)
	default:
		node, err := qs.Open(addr[:strings.Index(addr, "://")+3], config(over))
		if err != nil {
			return nil, err
		}
		to, err := node.Peer(context.Background(), addr)
		if err != nil {
			return nil, err
		}
		s.tc = testgrpc.NewTestServiceClient(grpcqs.NewClient(to))
	}
	return s, nil
}

func payload(n int) *testgrpc.Payload { return &testgrpc.Payload{Body: make([]byte, n)} }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// unary measures calls of size bytes with inFlight calls at a time. The result is in calls per
// second.
func unary(size, inFlight int) func(testgrpc.TestServiceClient) float64 {
	return func(tc testgrpc.TestServiceClient) float64 {
		ctx := context.Background()
		run := func(d time.Duration) float64 {
			var wg sync.WaitGroup
			counts := make([]int, inFlight)
			begun := time.Now()
			for i := range inFlight {
				wg.Go(func() {
					in := &testgrpc.SimpleRequest{Payload: payload(size)}
					for time.Since(begun) < d {
						_, err := tc.UnaryCall(ctx, in)
						must(err)
						counts[i]++
					}
				})
			}
			wg.Wait()
			n := 0
			for _, c := range counts {
				n += c
			}
			return float64(n) / time.Since(begun).Seconds()
		}
		run(*second / 10)
		return run(*second)
	}
}

// down measures a stream from server to client, in messages per second.
func down(size int) func(testgrpc.TestServiceClient) float64 {
	return func(tc testgrpc.TestServiceClient) float64 {
		begun := time.Now()
		s, err := tc.StreamingOutputCall(
			context.Background(),
			&testgrpc.StreamingOutputCallRequest{Payload: payload(size),
				ResponseParameters: []*testgrpc.ResponseParameters{{Size: int32(*items)}}},
		)
		must(err)
		n := 0
		for {
			if _, err = s.Recv(); err != nil {
				break
			}
			n++
		}
		if err != io.EOF || n != *items {
			panic(fmt.Sprint(n, err))
		}
		return float64(n) / time.Since(begun).Seconds()
	}
}

// up measures a stream from client to server, in messages per second.
func up(size int) func(testgrpc.TestServiceClient) float64 {
	return func(tc testgrpc.TestServiceClient) float64 {
		begun := time.Now()
		s, err := tc.StreamingInputCall(context.Background())
		must(err)
		in := &testgrpc.StreamingInputCallRequest{Payload: payload(size)}
		for range *items {
			must(s.Send(in))
		}
		out, err := s.CloseAndRecv()
		must(err)
		if int(out.AggregatedPayloadSize) != *items {
			panic(out)
		}
		return float64(*items) / time.Since(begun).Seconds()
	}
}

// pingPong returns the median round-trip time of a message on one stream, in seconds.
func pingPong(tc testgrpc.TestServiceClient) float64 {
	s, err := tc.FullDuplexCall(context.Background())
	must(err)
	in := &testgrpc.StreamingOutputCallRequest{Payload: payload(64)}
	var took []time.Duration
	begun := time.Now()
	for last := begun; last.Sub(begun) < *second; {
		must(s.Send(in))
		_, err := s.Recv()
		must(err)
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
	}
	must(s.CloseSend())
	_, _ = s.Recv()
	slices.Sort(took)
	return took[len(took)/2].Seconds()
}

// chat measures ping-pong on many concurrent streams, in round trips per second.
func chat(streams int) func(testgrpc.TestServiceClient) float64 {
	return func(tc testgrpc.TestServiceClient) float64 {
		var wg sync.WaitGroup
		counts := make([]int, streams)
		begun := time.Now()
		for i := range streams {
			wg.Go(func() {
				s, err := tc.FullDuplexCall(context.Background())
				must(err)
				in := &testgrpc.StreamingOutputCallRequest{Payload: payload(64)}
				for time.Since(begun) < *second {
					must(s.Send(in))
					_, err := s.Recv()
					must(err)
					counts[i]++
				}
				must(s.CloseSend())
				_, _ = s.Recv()
			})
		}
		wg.Wait()
		n := 0
		for _, c := range counts {
			n += c
		}
		return float64(n) / time.Since(begun).Seconds()
	}
}

// A row is a workload that is measured over each side. Ratios are relative to the first side.
type row struct {
	name  string
	run   func(testgrpc.TestServiceClient) float64
	sides []string
}

func measure() error {
	if *dir == "" {
		d, err := os.MkdirTemp("", "beside")
		if err != nil {
			return err
		}
		*dir = d
		defer os.RemoveAll(d)
	}
	if err := writeCertificate(); err != nil {
		return err
	}
	tcp, shared, secure := []string{
		"grpc",
		"qs",
	}, []string{
		"grpc-unix",
		"qs-sm",
	}, []string{
		"grpc-tls",
		"qs-tls",
	}
	rows := []row{
		{
			"unary 64 B, 1 in flight, calls/s",
			unary(64, 1),
			tcp,
		}, {"unary 64 B, 16", unary(64, 16), tcp}, {"unary 64 B, 64", unary(64, 64), tcp},
		{
			"unary 64 B, 1, shared memory",
			unary(64, 1),
			shared,
		}, {"unary 64 B, 16, shared memory", unary(64, 16), shared}, {"unary 64 B, 64, shared memory", unary(64, 64), shared},
		{
			"unary 64 B, 1, TLS",
			unary(64, 1),
			secure,
		}, {"unary 64 B, 16, TLS", unary(64, 16), secure}, {"unary 64 B, 64, TLS", unary(64, 64), secure},
		{
			"messages of 64 B down, per second",
			down(64),
			tcp,
		}, {"messages of 64 B up", up(64), tcp}, {"messages of 64 B down, TLS", down(64), secure},
		{
			"ping-pong of a stream, p50 in s",
			pingPong,
			tcp,
		}, {"ping-pong of a stream, shared memory", pingPong, shared}, {"ping-pong of a stream, TLS", pingPong, secure},
		{"ping-pong of 64 streams, trips/s", chat(64), tcp},
		{
			"unary 1 MiB, calls/s",
			unary(1<<20, 1),
			tcp,
		}, {"unary 1 MiB, shared memory", unary(1<<20, 1), shared}, {"unary 1 MiB, TLS", unary(1<<20, 1), secure},
	}
	sides := map[string]*side{}
	defer func() {
		for _, s := range sides {
			s.stop()
		}
	}()
	for _, r := range rows {
		if !strings.Contains(r.name, *only) {
			continue
		}
		got := map[string][]float64{}
		for range *rounds {
			for _, name := range r.sides {
				s := sides[name]
				if s == nil {
					var err error
					if s, err = open(name); err != nil {
						return err
					}
					sides[name] = s
				}
				got[name] = append(got[name], r.run(s.tc))
			}
		}
		fmt.Printf("%-38s", r.name)
		var first float64
		for i, name := range r.sides {
			all := got[name]
			slices.Sort(all)
			m := all[len(all)/2]
			if i == 0 {
				first = m
			}
			fmt.Printf("  %9s %s (%s to %s)", name, number(m), number(all[0]), number(all[len(all)-1]))
			if i > 0 {
				fmt.Printf("  x %.2f", m/first)
			}
		}
		fmt.Println()
	}
	return nil
}

// number formats a figure. Values below 1 are formatted as microseconds, others without decimals.
func number(f float64) string {
	if f < 1 {
		return fmt.Sprintf("%.1f us", f*1e6)
	}
	return fmt.Sprintf("%.0f", f)
}
