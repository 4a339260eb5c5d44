package main

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cloudwego/shmipc-go"
	"github.com/quic-go/quic-go"
	"github.com/xtaci/kcp-go/v5"
)

// copied is the most bytes of a call that are copied behind its length. More than those leave from where they are.
const copied = 16 << 10

// callOn makes calls on a stream, one after the other: the length of the call, the call, and then the answer, whose length is known.
func callOn(s io.ReadWriter) caller {
	var frame []byte
	return func(in, out []byte) ([]byte, error) {
		frame = binary.BigEndian.AppendUint32(frame[:0], uint32(len(in)))
		var err error
		if len(in) > copied {
			parts := net.Buffers{frame, in}
			_, err = parts.WriteTo(s) // one system call on sockets
		} else {
			frame = append(frame, in...)
			_, err = s.Write(frame)
		}
		if err != nil {
			return nil, err
		}
		_, err = io.ReadFull(s, out)
		return out, err
	}
}

// answerOn answers the calls on a stream until it ends.
func answerOn(s io.ReadWriter) {
	r := bufio.NewReaderSize(s, 64<<10)
	for in := make([]byte, 4); ; {
		if _, err := io.ReadFull(r, in[:4]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint32(in))
		if len(in) < n {
			in = make([]byte, n)
		}
		if _, err := io.ReadFull(r, in[:n]); err != nil {
			return
		}
		if _, err := s.Write(must(answer(in[:n]))); err != nil {
			return
		}
	}
}

// serveAll answers on all streams that accept returns.
func serveAll[S io.ReadWriter](accept func() (S, error)) {
	for {
		go answerOn(must(accept()))
	}
}

func workers[S io.ReadWriter](open func() (S, error)) func() caller {
	return func() caller { return callOn(must(open())) }
}

// listen listens on an address that nobody has yet.
func listen(network string) net.Listener {
	if network == "tcp" {
		return must(net.Listen("tcp", "127.0.0.1:0"))
	}
	return must(net.Listen(network, filepath.Join(os.TempDir(), "socket")))
}

// raw is sockets, and nothing in between.
func raw(network string) system {
	return system{"raw-" + network, func() string {
		l := listen(network)
		go serveAll(l.Accept)
		return l.Addr().String()
	}, func(addr string) func() caller {
		return workers(func() (net.Conn, error) { return net.Dial(network, addr) })
	}}
}

var shmipcGo = system{"shmipc-go", func() string {
	l := listen("unix")
	go func() { serveAll(must(shmipc.Server(must(l.Accept()), shmConfig())).AcceptStream) }()
	return l.Addr().String()
}, func(addr string) func() caller {
	cfg := shmipc.DefaultSessionManagerConfig()
	cfg.Config, cfg.Network, cfg.Address = shmConfig(), "unix", addr
	cfg.ShareMemoryPathPrefix, cfg.QueuePath = addr+".memory", addr+".queue"
	return workers(must(shmipc.NewSessionManager(cfg)).GetStream)
}}

func shmConfig() *shmipc.Config {
	shmipc.SetLogLevel(5) // nothing: it would go to the standard output
	c := shmipc.DefaultConfig()
	c.LogOutput, c.ShareMemoryBufferCap, c.MemMapType = io.Discard, 128<<20, shmipc.MemMapTypeMemFd
	return c
}

var quicGo = system{"quic-go", func() string {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	check(err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	own := tls.Certificate{Certificate: [][]byte{must(x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key))}, PrivateKey: key}
	l := must(quic.ListenAddr("127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"peers"}}, nil))
	go func() {
		c := must(l.Accept(context.Background()))
		serveAll(func() (*quic.Stream, error) { return c.AcceptStream(context.Background()) })
	}()
	return l.Addr().String()
}, func(addr string) func() caller {
	c := must(quic.DialAddr(context.Background(), addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"peers"}}, nil))
	return workers(c.OpenStream)
}}

var kcpGo = system{"kcp-go", func() string {
	l := must(kcp.ListenWithOptions("127.0.0.1:0", nil, 0, 0))
	go serveAll(func() (*kcp.UDPSession, error) { return fast(l.AcceptKCP()) })
	return l.Addr().String()
}, func(addr string) func() caller {
	return workers(func() (*kcp.UDPSession, error) { return fast(kcp.DialWithOptions(addr, nil, 0, 0)) })
}}

// fast sets what kcp-go's own documentation recommends for low latency.
func fast(s *kcp.UDPSession, err error) (*kcp.UDPSession, error) {
	if err == nil {
		s.SetNoDelay(1, 10, 2, 1)
		s.SetWindowSize(1024, 1024)
		s.SetStreamMode(true)
		s.SetACKNoDelay(true)
	}
	return s, err
}
