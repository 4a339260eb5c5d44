package main

import (
	"context"
	"net"
	"net/rpc"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"storj.io/drpc"
	"storj.io/drpc/drpcconn"
	"storj.io/drpc/drpcmanager"
	"storj.io/drpc/drpcserver"
	"storj.io/drpc/drpcwire"
)

// codec encodes *[]byte as what it is, and decodes into the memory that is there, for any that a system calls its messages.
type codec[M any] struct{}

func (codec[M]) Name() string                { return "bytes" }
func (codec[M]) Marshal(m M) ([]byte, error) { return *any(m).(*[]byte), nil }
func (codec[M]) Unmarshal(data []byte, m M) error {
	p := any(m).(*[]byte)
	*p = append((*p)[:0], data...)
	return nil
}

const largest = largestAnswer + 1<<20 // bytes of a message

var grpcGo = system{"grpc-tcp", func() string {
	s := grpc.NewServer(grpc.ForceServerCodec(codec[any]{}), grpc.MaxRecvMsgSize(largest))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "peers", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in []byte
			if err := decode(&in); err != nil {
				return nil, err
			}
			out, err := answer(in)
			return &out, err
		},
	}}}, nil)
	l := listen("tcp")
	go func() { check(s.Serve(l)) }()
	return l.Addr().String()
}, func(addr string) func() caller {
	c := must(grpc.NewClient("passthrough:"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec[any]{}), grpc.MaxCallRecvMsgSize(largest))))
	return func() caller {
		return func(in, out []byte) (_ []byte, err error) {
			err = c.Invoke(context.Background(), "/peers/Echo", &in, &out)
			return out, err
		}
	}
}}

// drpcEcho is a drpc.Handler.
type drpcEcho struct{}

func (drpcEcho) HandleRPC(s drpc.Stream, _ string) error {
	var in []byte
	if err := s.MsgRecv(&in, codec[drpc.Message]{}); err != nil {
		return err
	}
	out, err := answer(in)
	if err != nil {
		return err
	}
	return s.MsgSend(&out, codec[drpc.Message]{})
}

var drpcGo = system{"drpc", func() string {
	l := listen("tcp")
	go func() { check(drpcserver.New(drpcEcho{}).Serve(context.Background(), l)) }()
	return l.Addr().String()
}, func(addr string) func() caller {
	return func() caller {
		c := drpcconn.NewWithOptions(must(net.Dial("tcp", addr)), drpcconn.Options{Manager: drpcmanager.Options{
			Reader: drpcwire.ReaderOptions{MaximumBufferSize: largest},
		}})
		return func(in, out []byte) (_ []byte, err error) {
			err = c.Invoke(context.Background(), "peers/Echo", codec[drpc.Message]{}, &in, &out)
			return out, err
		}
	}
}}

// Service is what net/rpc serves.
type Service struct{}

// Echo answers in.
func (Service) Echo(in []byte, out *[]byte) (err error) {
	*out, err = answer(in)
	return err
}

var netRPC = system{"net-rpc", func() string {
	s := rpc.NewServer()
	check(s.RegisterName("peers", Service{}))
	l := listen("tcp")
	go s.Accept(l)
	return l.Addr().String()
}, func(addr string) func() caller {
	c := must(rpc.Dial("tcp", addr))
	return func() caller {
		return func(in, out []byte) (_ []byte, err error) {
			err = c.Call("peers.Echo", in, &out)
			return out, err
		}
	}
}}

// ttrpcGo takes messages of up to 4 MiB.
var ttrpcGo = system{"ttrpc", func() string {
	s := must(ttrpc.NewServer())
	s.Register("peers", map[string]ttrpc.Method{"Echo": func(_ context.Context, decode func(any) error) (any, error) {
		var in wrapperspb.BytesValue
		if err := decode(&in); err != nil {
			return nil, err
		}
		out, err := answer(in.Value)
		return wrapperspb.Bytes(out), err
	}})
	l := listen("tcp")
	go func() { check(s.Serve(context.Background(), l)) }()
	return l.Addr().String()
}, func(addr string) func() caller {
	c := ttrpc.NewClient(must(net.Dial("tcp", addr)))
	return func() caller {
		return func(in, _ []byte) ([]byte, error) {
			var out wrapperspb.BytesValue
			err := c.Call(context.Background(), "peers", "Echo", wrapperspb.Bytes(in), &out)
			return out.Value, err
		}
	}
}}
