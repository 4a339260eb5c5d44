// Command lend moves large data with calls: memory, a reader and a file go to the server, and data comes back into memory and a writer.
//
//	Source: the caller lends bytes      server pulls them when it has room
//	Sink:   the caller lends room       server pushes into it
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// The inputs of both methods. Source and Sink may stand in any field of the input, and are of one type on both sides.
type (
	Upload struct {
		Name string
		Body qs.Source
	}
	Download struct {
		Name string
		Room qs.Sink
	}
)

var (
	Put = qs.Define[Upload, int64]("file/put")
	Get = qs.Define[Download, int64]("file/get", qs.Idempotent())
)

func main() {
	ctx := context.Background()
	server, stop := serve()
	defer stop()
	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	defer client.Close()
	to, err := client.Peer(ctx, server)
	check(err)

	// Memory: it is not copied into a message, and it is yours again when Call has returned, whatever the error.
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<19) // 8 MiB
	n, err := Put.Call(ctx, to, Upload{"memory", qs.Bytes(data)})
	fmt.Println("put memory:", n, err)

	// A stream of unknown length. Nothing is read from it before the handler reads.
	n, err = Put.Call(ctx, to, Upload{"reader", qs.Reader(strings.NewReader("line by line\n"))})
	fmt.Println("put a reader:", n, err)

	// A file, from its beginning to its end.
	file, err := os.CreateTemp("", "lend")
	check(err)
	defer os.Remove(file.Name())
	defer file.Close()
	_, err = file.WriteString("from a file\n")
	check(err)
	n, err = Put.Call(ctx, to, Upload{"file", qs.File(file)})
	fmt.Println("put a file:", n, err)

	// Room in memory. Filled says how much of it the handler has written.
	room := make([]byte, len(data))
	in := Download{"memory", qs.Buffer(room)}
	n, err = Get.Call(ctx, to, in)
	fmt.Println("get into memory:", n, in.Room.Filled(), bytes.Equal(room, data), err)

	// A writer, for data of any length.
	var text strings.Builder
	n, err = Get.Call(ctx, to, Download{"file", qs.Writer(&text)})
	fmt.Printf("get into a writer: %d %q %v\n", n, text.String(), err)
}

// A store keeps what was put.
type store struct {
	mu    sync.Mutex
	files map[string][]byte
}

// serve opens a node at a free port and serves until stop is called.
func serve() (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	s := &store{files: map[string][]byte{}}
	Put.Handle(node, func(ctx context.Context, in Upload) (int64, error) {
		data, err := io.ReadAll(in.Body.Reader(ctx)) // pulled as it is read; for a file io.Copy is the fastest
		if err != nil {
			return 0, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.files[in.Name] = data
		return int64(len(data)), nil
	})
	Get.Handle(node, func(ctx context.Context, in Download) (int64, error) {
		s.mu.Lock()
		data, ok := s.files[in.Name]
		s.mu.Unlock()
		if !ok {
			return 0, qs.Errorf(qs.ErrNotFound, "no file %q", in.Name)
		}
		return io.Copy(in.Room.Writer(ctx), bytes.NewReader(data)) // pushed into what the caller lends
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	return node.Addr().String(), func() {
		cancel()
		check(<-ended)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
