package mercury_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/quicksilver-rpc/quicksilver/mercury"
)

// In C: MERCURY_GEN_PROC(scale_in_t, ((hg_bulk_t)(mem))((int32_t)(factor))).
type scaleIn struct {
	Mem    mercury.Bulk
	Factor int32
}

// In C: MERCURY_REGISTER(class, "scale", scale_in_t, hg_string_t, on_scale). A method of Margo is named by DefineMargo.
var scale = mercury.Define[scaleIn, string]("scale")

// Example has a service that reads and writes the memory that its client lends. Each of the two may
// be a C program.
func Example() {
	service, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer service.Close()
	scale.Handle(service, func(ctx context.Context, in scaleIn) (string, error) {
		mem := mercury.RequestOf(ctx).Remote(in.Mem)
		buf := make([]byte, min(mem.Len(), 1<<20))
		if _, err := mem.Get(ctx, buf, 0); err != nil {
			return "", err
		}
		for i := range buf {
			buf[i] *= byte(in.Factor)
		}
		_, err := mem.Put(ctx, buf, 0)
		return fmt.Sprint(len(buf), " bytes"), err
	})

	client, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	mem := []byte{1, 2, 3}
	region, err := client.Lend(mem, mercury.Read|mercury.Write, service.Addr())
	if err != nil {
		log.Fatal(err)
	}
	out, err := scale.Call(context.Background(), client, service.Addr(), scaleIn{region.Bulk(), 10})
	region.Close()
	fmt.Println(out, mem, err)
	// Output: 3 bytes [10 20 30] <nil>
}

type addIn struct{ A, B int32 }

var add = mercury.Define[addIn, int32]("add") // MERCURY_REGISTER(class, "add", add_in_t, add_out_t, on_add)

// ExampleDefine defines a method once, for its service and its clients.
func ExampleDefine() {
	service, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer service.Close()
	add.Handle(service, func(_ context.Context, in addIn) (int32, error) { return in.A + in.B, nil })
	ctx, addr := context.Background(), service.Addr()

	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	out, err := add.Call(ctx, node, addr, addIn{40, 2}) // add.Handle(node, fn) serves it
	fmt.Println(out, err)
	// Output: 42 <nil>
}

// In C: MERCURY_GEN_PROC(fetch_in_t, ((hg_const_string_t)(origin))((uint64_t)(key))); origin may be NULL.
type fetchIn struct {
	Origin *string
	Key    uint64
}

// In C: MARGO_REGISTER_PROVIDER(mid, "fetch", fetch_in_t, hg_string_t, on_fetch, provider_id, pool).
var fetch = mercury.DefineMargo[fetchIn, string]("fetch")

// ExampleNode_Provide starts a provider of Margo, as bedrock does: its number is from a
// configuration. Client and service may each be a C program.
func ExampleNode_Provide() {
	service, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer service.Close()
	store, err := service.Provide(42, "store") // margo_provider_register_identity
	if err != nil {
		log.Fatal(err)
	}
	fetch.HandleAt(store, func(_ context.Context, in fetchIn) (string, error) {
		return fmt.Sprint("value ", in.Key), nil
	})
	service.EnableShutdown(func() { fmt.Println("told to end") }) // margo_enable_remote_shutdown
	ctx, addr := context.Background(), service.Addr()

	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	out, err := fetch.At(42).Call(ctx, node, addr, fetchIn{Key: 7})
	fmt.Println(out, err)
	who, err := mercury.Identity(ctx, node, addr, 42)
	fmt.Println(who, err)
	store.Close() // the requests for it are answered with HG_NOENTRY
	_, err = fetch.At(42).Call(ctx, node, addr, fetchIn{Key: 7})
	fmt.Println(errors.Is(err, mercury.ErrNoMethod), mercury.FateOf(err))
	// Output:
	// value 7 <nil>
	// store <nil>
	// true did not run
}
