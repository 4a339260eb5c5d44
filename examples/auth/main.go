// Command auth has a server that knows who calls: by the certificate of the caller's process (mutual TLS), and by a token of the user.
//
//	client: its certificate, a token in the metadata ──► Authorize: may this process call? ──► interceptor: whose token? ──► handler
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

var Balance = qs.Define[string, int]("bank/balance")

// callers are the processes that may call.
var callers = map[string]bool{"billing": true}

// users are tokens and who has them. A real service verifies a signature instead.
var users = map[string]string{"secret-of-ada": "ada"}

// A userKey is the key of the user in a context.
type userKey struct{}

// checkToken is an interceptor of the server: it gives the handler the user whose token came with the call.
func checkToken(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
	token, _ := c.Metadata.Get("token")
	user, ok := users[token]
	if !ok {
		return qs.Errorf(qs.ErrDenied, "%s needs a valid token", c.Method)
	}
	return next(context.WithValue(ctx, userKey{}, user))
}

// authorize is asked before the input is decoded. Caller().Name is of a certificate that was verified, and empty without one.
func authorize(_ context.Context, c *qs.Call) error {
	if name := c.Caller().Name; !callers[name] {
		return qs.Errorf(qs.ErrPermission, "%q may not call %s", name, c.Method)
	}
	return nil
}

func serve(certs string) (addr string, stop func()) {
	tls, err := qs.LoadTLS(filepath.Join(certs, "bank.pem"), filepath.Join(certs, "bank-key.pem"), filepath.Join(certs, "ca.pem"))
	check(err)
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{
		TLS:                tls,
		Authorize:          authorize,
		ServerInterceptors: []qs.Interceptor{checkToken},
	})
	check(err)
	Balance.Handle(node, func(ctx context.Context, account string) (int, error) {
		if user := ctx.Value(userKey{}); user != account {
			return 0, qs.Errorf(qs.ErrDenied, "%v may not see the account of %s", user, account)
		}
		return 42, nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	return node.Addr().String(), func() {
		cancel()
		check(<-ended)
	}
}

// balance asks as the process name, with a token of a user.
func balance(ctx context.Context, addr, certs, name, token, account string) (int, error) {
	tls, err := qs.LoadTLS(filepath.Join(certs, name+".pem"), filepath.Join(certs, name+"-key.pem"), filepath.Join(certs, "ca.pem"))
	check(err)
	client, err := qs.Open("tcp://", qs.Config{TLS: tls})
	check(err)
	defer client.Close()
	bank, err := client.Peer(ctx, addr)
	check(err)
	return Balance.Call(qs.WithMetadata(ctx, "token", token), bank, account)
}

func main() {
	ctx := context.Background()
	certs, err := os.MkdirTemp("", "auth")
	check(err)
	defer os.RemoveAll(certs)
	ca := newAuthority(certs) // in certs.go
	for _, name := range []string{"bank", "billing", "guest"} {
		ca.issue(name, false)
	}
	addr, stop := serve(certs)
	defer stop()

	fmt.Println(balance(ctx, addr, certs, "billing", "secret-of-ada", "ada"))
	_, err = balance(ctx, addr, certs, "billing", "secret-of-ada", "grace")
	fmt.Println("another's account: denied:", errors.Is(err, qs.ErrDenied))
	_, err = balance(ctx, addr, certs, "billing", "wrong", "ada")
	fmt.Println("a wrong token: denied:", errors.Is(err, qs.ErrDenied), "-", qs.FateOf(err))
	_, err = balance(ctx, addr, certs, "guest", "secret-of-ada", "ada")
	fmt.Println("a process that may not call:", errors.Is(err, qs.ErrPermission), "-", qs.FateOf(err))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
