package yokan_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/quicksilver-rpc/quicksilver/contrib/yokan"
	"github.com/quicksilver-rpc/quicksilver/mercury"
)

func Example() {
	service, addr := exampleService() // in practice a C process, which bedrock has started: ofi+tcp://10.0.0.7:4000, for example
	defer service.Close()

	ctx := context.Background()
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	db, err := yokan.Open(ctx, node, addr, 42, yokan.Config{})
	if err != nil {
		log.Fatal(err)
	}

	err = db.PutMulti(ctx, []yokan.Pair{
		{Key: []byte("planet/earth"), Value: []byte("third")},
		{Key: []byte("planet/mars"), Value: []byte("fourth")},
	})
	if err != nil {
		log.Fatal(err)
	}
	value, err := db.Get(ctx, []byte("planet/mars"))
	fmt.Println(string(value), err)
	_, err = db.Get(ctx, []byte("planet/pluto"))
	fmt.Println(errors.Is(err, yokan.ErrKeyNotFound))
	err = db.With(yokan.NewOnly).Put(ctx, []byte("planet/mars"), []byte("red"))
	fmt.Println(errors.Is(err, yokan.ErrKeyExists))
	pairs, err := db.ListPairs(ctx, nil, []byte("planet/"), 100)
	for _, p := range pairs {
		fmt.Println(string(p.Key), string(p.Value))
	}
	fmt.Println(err)
	// Output:
	// fourth <nil>
	// true
	// true
	// planet/earth third
	// planet/mars fourth
	// <nil>
}

func ExampleDatabase_GetPacked() {
	service, addr := exampleService()
	defer service.Close()
	ctx := context.Background()
	node, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	db, err := yokan.Open(ctx, node, addr, 42, yokan.Config{})
	if err != nil {
		log.Fatal(err)
	}
	for _, planet := range []string{"earth", "mars"} {
		if err := db.Put(ctx, []byte(planet), []byte("planet "+planet)); err != nil {
			log.Fatal(err)
		}
	}
	keys := [][]byte{[]byte("earth"), []byte("pluto"), []byte("mars")}
	buf := make([]byte, 15) // is used again and again
	values, err := db.GetPacked(ctx, keys, buf)
	if err != nil {
		log.Fatal(err)
	}
	for i, v := range values {
		fmt.Printf("%s: %q %v\n", keys[i], v.Data, v.Err)
	}
	// Output:
	// earth: "planet earth" <nil>
	// pluto: "" key not found (YOKAN_ERR_KEY_NOT_FOUND)
	// mars: "" buffer too small (YOKAN_ERR_BUFFER_SIZE)
}
