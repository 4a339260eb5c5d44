// Package quicksilver is RPC and bulk data transfer with types: functions of other processes that are called like those of
// this one, and large buffers and files that move straight into the receiver's memory.
//
//	var Greet = quicksilver.Define[string, string]("greet") // a variable that both programs import
//
//	server: node, err := quicksilver.Open("tcp://:7000", quicksilver.Config{})
//	        Greet.Handle(node, func(ctx context.Context, name string) (string, error) { return "hello, " + name, nil })
//	        err = node.Serve(ctx)
//
//	client: node, err := quicksilver.Open("tcp://", quicksilver.Config{})
//	        server, err := node.Peer(ctx, "tcp://10.0.0.7:7000")
//	        answer, err := Greet.Call(ctx, server, "Ada")
//
// A context's deadline travels with the call. Handlers run on goroutines of their own. Errors carry a [Code], and a [Fate] that
// says what became of the request. Large data is lent for the time of a call: see [Source] and [Sink].
//
// For calls with callbacks, and for everything else that Mercury has, see packages hg and bulk below; [Node.HG] leads there.
package quicksilver
