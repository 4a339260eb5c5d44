// Command pubsub has a server that passes news on to its subscribers, and a subscriber that goes on where it was when its server stops.
//
//	publisher ── Publish ──► server ── a stream of news from number n on ──► subscriber
//	                         stops: Draining(ctx)     the subscriber asks the next server for n+1
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

type News struct {
	Number int
	Text   string
}

var (
	Publish   = qs.Define[string, int]("news/publish")
	Subscribe = qs.DefineStream[int, News]("news/subscribe") // In: the number of the first news
)

// A Log keeps all news. Both servers of this program have the same one; a real service keeps it in a database, or in a replicated log.
type Log struct {
	mu   sync.Mutex // guards the fields below
	all  []News
	more chan struct{} // closed when there is more
}

func (l *Log) append(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, News{len(l.all), text})
	close(l.more)
	l.more = make(chan struct{})
	return len(l.all) - 1
}

// from returns the news from number n on, and a channel that is closed when there is more.
func (l *Log) from(n int) ([]News, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[min(n, len(l.all)):], l.more
}

// Handle has node serve l.
func (l *Log) Handle(node *qs.Node) {
	Publish.Handle(node, func(_ context.Context, text string) (int, error) { return l.append(text), nil })
	Subscribe.Handle(node, func(ctx context.Context, next int, send func(News) error) error {
		for {
			news, more := l.from(next)
			for _, n := range news {
				if err := send(n); err != nil { // waits while the subscriber is slow
					return err
				}
				next = n.Number + 1
			}
			select {
			case <-more:
			case <-qs.Draining(ctx).Done(): // this server stops: a subscription does not end by itself
				return qs.Errorf(qs.ErrDraining, "this server stops; subscribe at another")
			case <-ctx.Done(): // the subscriber has left
				return context.Cause(ctx)
			}
		}
	})
}

// follow calls handle for each news from number next on, until handle returns false. It subscribes again when a server stops or is lost.
func follow(ctx context.Context, service qs.Peer, next int, handle func(News) bool) error {
	for ctx.Err() == nil {
		for news, err := range Subscribe.Call(ctx, service, next) {
			if errors.Is(err, qs.ErrDraining) || errors.Is(err, qs.ErrAborted) || errors.Is(err, qs.ErrPeerLost) || errors.Is(err, qs.ErrUnreachable) {
				break // subscribe again, from where it was
			}
			if err != nil {
				return err
			}
			if next = news.Number + 1; !handle(news) {
				return nil
			}
		}
		select {
		case <-time.After(20 * time.Millisecond): // do not ask a service that is down all the time
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l := &Log{more: make(chan struct{})}
	first, stopFirst := serve(l)
	second, stopSecond := serve(l)
	defer stopSecond()
	client, err := qs.Open("tcp://", qs.Config{})
	check(err)
	defer client.Close()
	service, err := client.Peer(ctx, first, second) // the first one, as long as it does well
	check(err)

	for _, text := range []string{"one", "two"} {
		_, err = Publish.Call(ctx, service, text)
		check(err)
	}
	check(follow(ctx, service, 0, func(n News) bool {
		fmt.Println("news", n.Number, n.Text)
		if n.Number == 1 {
			fmt.Println("the first server stops")
			stopFirst() // waits for its calls, and this one ends, since its handler looks at Draining
			l.append("three")
		}
		return n.Number < 2
	}))
}

// serve opens a node at a free port and serves until stop is called.
func serve(l *Log) (addr string, stop func()) {
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	check(err)
	l.Handle(node)
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
