package grpcqs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	crossSeeds = flag.Int("grpcqs.seeds", long.Or(200, 1000), "seeds that TestFaultsAtEachEvent runs")
	crossSeed  = flag.Uint64("grpcqs.seed", 0, "the one seed that TestFaultsAtEachEvent runs; 0 runs many")
)

// The kinds of calls, and what happens to them.
var (
	crossKinds  = []string{"unary", "down", "up", "both"}
	crossEvents = []string{"nothing", "cancel", "kill", "power off", "stop", "drain", "freeze"}
)

// callTime is the deadline of a crossing's call, frozenFor how long its server is frozen.
const (
	callTime  = time.Second
	frozenFor = 3 * time.Second
)

// A faultCase is one call of a kind in a world of its own, to which something happens after so many
// events of the world.
type faultCase struct {
	seed        uint64
	kind, event string
	after       int // events; 0: it does not happen
	w           *sim.World
	rng         *rand.Rand
	items       int // messages of a stream, in each direction that has some
	size        int // of each
	st          *status.Status

	server, client *qs.Node
	ran            int   // handlers that have begun
	served         error // of Serve
	err            error // of the call
	header         metadata.MD
	took           time.Duration
	events         uint64 // during the call
	left           error  // the error of the client's Shutdown
}

func newFaultCase(seed uint64) *faultCase {
	x := &faultCase{seed: seed, rng: rand.New(rand.NewPCG(seed, 55))}
	x.kind = crossKinds[x.rng.IntN(len(crossKinds))]
	x.event = crossEvents[x.rng.IntN(len(crossEvents))]
	x.items, x.size = 1+x.rng.IntN(20), 1<<x.rng.IntN(13)
	if x.rng.IntN(8) == 0 {
		x.size = 100_000
	}
	if x.rng.IntN(2) == 0 {
		x.st, _ = status.New(codes.Aborted,
			"the end").WithDetails(&errdetails.DebugInfo{Detail: strings.Repeat("x", 1<<x.rng.IntN(13))})
	}
	cfg := sim.Config{Seed: seed, Level: sim.Level(x.rng.IntN(2))}
	cfg.Faults.Loss = 0.1 * float64(x.rng.IntN(2))
	x.w = sim.NewWorld(cfg)
	return x
}

func (x *faultCase) String() string {
	return fmt.Sprintf("-grpcqs.seed=%d: %s call of %d messages of %d bytes, %s after %d events", x.seed,
		x.kind, x.items, x.size, x.event, x.after)
}

func (x *faultCase) open(addr string) *qs.Node {
	cfg := qs.Config{Logger: slog.New(slog.DiscardHandler)}
	if x.event == "stop" {
		cfg.ShutdownTimeout = -1
	}
	cfg.HG.NA.Plugins = []hg.Plugin{x.w.Plugin()}
	n, err := qs.Open(addr, cfg)
	if err != nil {
		panic(err)
	}
	return n
}

// number and numbered give messages a number.
func (x *faultCase) numbered(i int) *testgrpc.Payload {
	b := make([]byte, x.size+4)
	copy(b, fmt.Sprintf("%04d", i))
	return &testgrpc.Payload{Body: b}
}

func (x *faultCase) check(i int, p *testgrpc.Payload) {
	if got := string(p.GetBody()[:4]); got != fmt.Sprintf("%04d", i) || len(p.GetBody()) != x.size+4 {
		panic(fmt.Sprintf("message %s of %d bytes in place of message %d", got, len(p.GetBody()), i))
	}
}

// enterHandler begins a handler.
func (x *faultCase) enterHandler(ctx context.Context) {
	x.ran++
	_ = grpc.SetHeader(ctx, metadata.Pairs("h", "1"))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
	x.pause(ctx)
}

func (x *faultCase) pause(ctx context.Context) {
	if x.rng.IntN(3) == 0 {
		_ = x.server.HG().Sleep(ctx, time.Duration(x.rng.IntN(200))*time.Microsecond)
	}
}

// receive receives messages from receive, in their order, until the end.
func (x *faultCase) receive(ctx context.Context, receive func() (*testgrpc.Payload, error)) error {
	for i := 0; ; i++ {
		p, err := receive()
		if err != nil {
			return err
		}
		x.check(i, p)
		x.pause(ctx)
	}
}

// double is the service.
func (x *faultCase) double() *double {
	return &double{
		unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			x.enterHandler(ctx)
			x.check(0, in.Payload)
			return &testgrpc.SimpleResponse{Payload: x.numbered(0)}, x.st.Err()
		},
		down: func(in *testgrpc.StreamingOutputCallRequest,
			s testgrpc.TestService_StreamingOutputCallServer) error {
			x.enterHandler(s.Context())
			x.check(0, in.Payload)
			for i := range x.items {
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: x.numbered(i)}); err != nil {
					return err
				}
				x.pause(s.Context())
			}
			return x.st.Err()
		},
		up: func(s testgrpc.TestService_StreamingInputCallServer) error {
			x.enterHandler(s.Context())
			n := int32(0)
			err := x.receive(s.Context(), func() (*testgrpc.Payload, error) {
				in, err := s.Recv()
				n++
				return in.GetPayload(), err
			})
			if err != io.EOF {
				return err
			}
			if x.st != nil {
				return x.st.Err()
			}
			return s.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: n - 1})
		},
		both: func(s testgrpc.TestService_FullDuplexCallServer) error {
			x.enterHandler(s.Context())
			i := 0
			err := x.receive(s.Context(), func() (*testgrpc.Payload, error) {
				in, err := s.Recv()
				if err == nil {
					err = s.Send(&testgrpc.StreamingOutputCallResponse{Payload: x.numbered(i)})
					i++
				}
				return in.GetPayload(), err
			})
			if err != io.EOF {
				return err
			}
			return x.st.Err()
		},
	}
}

// call makes the call, and returns its error: nil if all expected messages have arrived, in order.
func (x *faultCase) call(ctx context.Context, tc testgrpc.TestServiceClient) error {
	all := func(i int, err error) error {
		if err == io.EOF && i != x.items {
			panic(fmt.Sprintf("%d messages of %d, and the end", i, x.items))
		}
		if err == io.EOF {
			return nil
		}
		return err
	}
	switch x.kind {
	case "unary":
		out, err := tc.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: x.numbered(0)},
			grpc.Header(&x.header))
		if err == nil {
			x.check(0, out.Payload)
		}
		return err
	case "down":
		s, err := tc.StreamingOutputCall(ctx,
			&testgrpc.StreamingOutputCallRequest{Payload: x.numbered(0)}, grpc.Header(&x.header))
		i := 0
		for err == nil {
			var m *testgrpc.StreamingOutputCallResponse
			if m, err = s.Recv(); err == nil {
				x.check(i, m.Payload)
				i++
			}
		}
		return all(i, err)
	case "up":
		s, err := tc.StreamingInputCall(ctx, grpc.Header(&x.header))
		for i := 0; err == nil && i < x.items; i++ {
			err = s.Send(&testgrpc.StreamingInputCallRequest{Payload: x.numbered(i)})
		}
		if err != nil && err != io.EOF {
			return err
		}
		out, err := s.CloseAndRecv()
		if err == nil && int(out.AggregatedPayloadSize) != x.items {
			panic(fmt.Sprintf("%d messages of %d were received", out.AggregatedPayloadSize, x.items))
		}
		return err
	default:
		s, err := tc.FullDuplexCall(ctx, grpc.Header(&x.header))
		i := 0
		for ; err == nil && i < x.items; i++ {
			if err = s.Send(&testgrpc.StreamingOutputCallRequest{Payload: x.numbered(i)}); err == io.EOF {
				err = nil
			}
			var m *testgrpc.StreamingOutputCallResponse
			if m, err = s.Recv(); err == nil {
				x.check(i, m.Payload)
			}
		}
		if err == nil {
			if err = s.CloseSend(); err == nil {
				_, err = s.Recv()
			}
		}
		return all(i, err)
	}
}

// run runs the world.
func (x *faultCase) run() error {
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	listening := false
	x.w.Go("server", func() {
		x.server = x.open("sim://server")
		x.double().register(grpcqs.NewServer(x.server))
		listening = true
		x.served = x.server.Serve(serving)
	})
	x.w.Go("client", func() {
		for !listening {
			x.w.Sleep(10 * time.Microsecond)
		}
		x.client = x.open("sim://")
		to, err := x.client.Peer(context.Background(), "sim://server")
		if err != nil {
			panic(err)
		}
		ctx, cancel := x.w.WithTimeout(context.Background(), callTime)
		defer cancel()
		if x.after > 0 {
			x.w.AfterEvents(x.after, func() {
				switch node := x.w.Node("server"); x.event {
				case "cancel":
					cancel()
					x.client.HG().Wake()
				case "kill":
					node.Crash()
				case "power off":
					node.PowerOff()
				case "stop", "drain":
					stop()
					x.server.HG().Wake()
				case "freeze":
					node.Pause(frozenFor)
				}
			})
		}
		begun, events := x.w.Now(), x.w.Stats().Events
		x.err = x.call(ctx, testgrpc.NewTestServiceClient(grpcqs.NewClient(to)))
		x.took, x.events = x.w.Now()-begun, x.w.Stats().Events-events
		x.w.Sleep(2 * frozenFor) // whatever still runs, ends
		x.left = x.client.Shutdown(context.Background())
		stop()
		x.server.HG().Wake()
	})
	err := x.w.Run(time.Minute)
	x.w.Close()
	return err
}

// checkEnd returns an error if the call has ended wrongly.
func (x *faultCase) checkEnd() error {
	code, fate := status.Code(x.err), grpcqs.FateOf(x.err)
	expected := proto.Equal(status.Convert(x.err).Proto(), x.st.Proto())
	lost := code == codes.Unavailable
	late := code == codes.DeadlineExceeded
	ok := expected
	switch x.event {
	case "cancel":
		ok = ok || code == codes.Canceled
	case "kill":
		ok = ok || lost
	case "power off":
		ok = ok || lost || late
	case "stop":
		ok = ok || lost
	case "drain": // what has begun may end
		ok = ok || lost && fate == qs.NotRun
	case "freeze":
		ok = ok || late
	}
	crashed := x.after > 0 && (x.event == "kill" || x.event == "power off")
	switch {
	case !ok:
		return fmt.Errorf("the call has ended with %v (%v), want %v", x.err, fate, x.st.Err())
	case fate == qs.NotRun && x.ran > 0:
		return errors.New("the handler has run, and the fate says that it has not")
	case fate == qs.Ran && x.ran == 0:
		return errors.New("the handler has not run, and the fate says that it has")
	case x.ran > 1:
		return fmt.Errorf("%d handlers have run", x.ran)
	case expected && x.header.Get("h") == nil:
		return errors.New("the header is missing")
	case x.took > callTime+100*time.Millisecond:
		return fmt.Errorf("the call has taken %v", x.took)
	case x.left != nil:
		return fmt.Errorf("the client has left something behind: %w", x.left)
	case !crashed && x.event != "stop" && x.served != nil:
		return fmt.Errorf("the server has left something behind: %w", x.served)
	}
	return nil
}

// TestFaultsAtEachEvent checks a server that is killed, powered off, stopped, drained or frozen, or a call
// that is canceled, at each step of a call of each kind: its status and its fate are right, no
// message arrives twice or out of order, and nothing is left.
func TestFaultsAtEachEvent(t *testing.T) {
	from, to := uint64(1), uint64(*crossSeeds)
	if *crossSeed != 0 {
		from, to = *crossSeed, *crossSeed
	}
	begun := map[string]int{} // for each event, calls that it has met
	for seed := from; seed <= to; seed++ {
		dry := newFaultCase(seed) // determines the number of steps
		dry.event = "nothing"
		require.NoError(t, dry.run(), dry)
		require.NoError(t, dry.checkEnd(), dry)
		x := newFaultCase(seed)
		x.after = 1 + x.rng.IntN(int(dry.events))
		require.NoError(t, x.run(), x)
		require.NoError(t, x.checkEnd(), x)
		if !proto.Equal(status.Convert(x.err).Proto(), x.st.Proto()) {
			begun[x.kind+" "+x.event]++
		}
	}
	t.Log("calls that ended otherwise than without the event:", begun)
}
