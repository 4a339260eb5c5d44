// Command blob stores files on servers. If one directory is served by several servers, each can
// replace the others.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// Blob is the input of Put and Get. Body is a Source or a Sink.
type Blob[Body any] struct {
	Key  string
	Body Body
}

var (
	Put    = qs.Define[Blob[qs.Source], int64]("blob/put", qs.Idempotent())
	Get    = qs.Define[Blob[qs.Sink], int64]("blob/get", qs.Idempotent())
	List   = qs.Define[string, []string]("blob/list", qs.Idempotent())
	Delete = qs.Define[string, struct{}]("blob/delete")
)

// handle makes node serve the files of a directory. Keys cannot refer to files outside it.
func handle(node *qs.Node, dir *os.Root) {
	Put.Handle(node, func(ctx context.Context, in Blob[qs.Source]) (n int64, err error) {
		part := ".part-" + rand.Text()
		f, err := dir.Create(part)
		if err != nil {
			return 0, err
		}
		defer dir.Remove(part) // unless it is complete
		defer f.Close()
		if n, err = io.Copy(f, in.Body.Reader(ctx)); err == nil { // the server pulls data as it has room
			err = dir.Rename(part, in.Key)
		}
		return n, err
	})
	Get.Handle(node, func(ctx context.Context, in Blob[qs.Sink]) (int64, error) {
		f, err := dir.Open(in.Key)
		if err != nil {
			return 0, coded(err)
		}
		defer f.Close()
		if in.Body.Len() == 0 { // the caller only requests the size
			return f.Seek(0, io.SeekEnd)
		}
		return in.Body.SendFile(ctx, f) // pushed from the page cache
	})
	List.Handle(node, func(_ context.Context, glob string) ([]string, error) { return fs.Glob(dir.FS(), glob) })
	Delete.Handle(node, func(_ context.Context, key string) (struct{}, error) { return struct{}{}, coded(dir.Remove(key)) })
}

// coded returns an error with code ErrNotFound for a file that does not exist.
func coded(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return qs.Errorf(qs.ErrNotFound, "%w", err)
	}
	return err
}

// call runs one of the commands listed in usage.
func call(ctx context.Context, store qs.Peer, command, key, file string) (out string, err error) {
	f, size := (*os.File)(nil), int64(0)
	switch command {
	case "put":
		if f, err = os.Open(file); err == nil {
			defer f.Close()
			_, err = Put.Call(ctx, store, Blob[qs.Source]{key, qs.File(f)})
		}
	case "get":
		if size, err = Get.Call(ctx, store, Blob[qs.Sink]{Key: key}); err == nil {
			if f, err = os.Create(file); err == nil {
				defer f.Close()
				_, err = Get.Call(ctx, store, Blob[qs.Sink]{key, qs.FileBuffer(f, size)})
			}
		}
	case "ls":
		names, err := List.Call(ctx, store, key)
		return strings.Join(append(names, ""), "\n"), err
	case "rm":
		_, err = Delete.Call(ctx, store, key)
	}
	return "", err
}

func main() {
	cert, key, ca := flag.String("cert", "", "certificate `file`: use TLS"), flag.String("key", "", "`file` with its key"), flag.String("ca", "", "`file` with who is trusted")
	stall := flag.Duration("stall", 3*time.Second, "`time` after which another server is asked instead of one that is silent")
	flag.Parse()
	args := flag.Args()
	if len(args) == 0 || len(args) != map[string]int{"serve": 3, "put": 4, "get": 4, "ls": 3, "rm": 3}[args[0]] {
		flag.PrintDefaults()
		log.Fatal("usage: blob [flags] serve ADDR DIR | put KEY FILE ADDR,... | get KEY FILE ADDR,... | ls GLOB ADDR,... | rm KEY ADDR,...")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := qs.Config{TLS: must(qs.LoadTLS(*cert, *key, *ca)), ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{ProgressTimeout: *stall})}, ShutdownTimeout: 30 * time.Second,
		Inspect: true} // for qs rpcs, qs top and qs ger
	if args[0] == "serve" {
		node := must(qs.Open(args[1], cfg))
		handle(node, must(os.OpenRoot(args[2])))
		fmt.Println(node.Addr())
		must(0, node.Serve(ctx)) // on SIGTERM it rejects new calls and lets running ones complete
		return
	}
	addrs := strings.Split(args[len(args)-1], ",")
	scheme, _, _ := strings.Cut(addrs[0], "://")
	node := must(qs.Open(scheme+"://", cfg))
	defer node.Close()
	store := must(node.Peer(ctx, addrs...))              // if one address fails, the next is tried
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // sent with each call
	defer cancel()
	fmt.Print(must(call(ctx, store, args[0], args[1], args[len(args)-2])))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
