package hg

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// RPCs that every class registers in addition to [inspect.RPCsRPC]. HashName returns their IDs.
// Config.Authorize is called for them as for any other RPC.
const (
	// PingRPC echoes its input.
	PingRPC = "hg/ping"
	// HealthRPC responds with empty output, or with ErrNotReady after SetReady(false); see
	// Class.SetReady. While the class is draining, it responds with ErrDraining.
	HealthRPC = "hg/health"
)

// SetReady sets the response of HealthRPC and of the probes that peers send. If ready is true,
// which is the default, the response is empty output, and otherwise it is ErrNotReady. While the
// class is draining, the response is always ErrDraining. SetReady does not block.
func (c *Class) SetReady(ready bool) { c.na.SetReady(ready) }

// isReady implements hghook.IsReady. It reports whether c has contexts, none of them is draining,
// and the last call of SetReady, if any, passed true.
func (c *Class) isReady() bool {
	all := c.Contexts()
	return len(all) > 0 && c.na.IsReady() && !slices.ContainsFunc(all, func(x *Context) bool { return x.nctx.Draining() })
}

// registerBuiltIn registers this package's own RPCs in a new class.
func (c *Class) registerBuiltIn() error {
	all := []RPC{
		{Name: PingRPC, Handler: handlePing, Inline: true, own: hghook.RPCOptions{Expedited: true}},
		{Name: HealthRPC, Handler: c.handleHealth, Inline: true, own: hghook.RPCOptions{ServeDraining: true, Expedited: true}},
		{Name: inspect.RPCsRPC, Inline: true},
	}
	if c.cfg.Reflect {
		all[2].Handler = c.handleReflect
	}
	for _, rpc := range all {
		if _, err := c.RegisterRPC(rpc); err != nil {
			return err
		}
	}
	return nil
}

func handlePing(r Request) error {
	in, err := r.InputRaw()
	if err != nil {
		return err
	}
	return r.RespondRaw(in, nil)
}

func (c *Class) handleHealth(r Request) error {
	switch {
	case r.HG().nctx.Draining():
		return errDraining
	case !c.na.IsReady():
		return na.WithText(ErrNotReady, "the target is not ready")
	}
	return r.RespondRaw(nil, nil)
}

func (c *Class) handleReflect(r Request) error {
	var all []inspect.RPC
	for _, rpc := range *c.rpcs.all.Load() {
		if rpc.Handler != nil {
			all = append(all, inspect.RPC{Name: rpc.Name, Codec: rpc.Codec.Name(), Shape: rpc.Shape, OneWay: rpc.OneWay})
		}
	}
	slices.SortFunc(all, func(a, b inspect.RPC) int { return strings.Compare(a.Name, b.Name) })
	b, err := inspect.EncodeRPCs(all, codes.Names())
	if err != nil {
		return fmt.Errorf("encode the RPCs: %w", err)
	}
	return r.RespondRaw(b, nil)
}
