package qs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestLogCallsLevels checks that normal outcomes are not logged as warnings, at either side.
func TestLogCallsLevels(t *testing.T) {
	t.Parallel()
	own := qs.DefineCode(222, "test: own code")
	answers := map[string]error{
		"none":      nil,
		"own":       qs.Refuse(qs.Errorf(own, "full")),
		"not found": qs.Errorf(qs.ErrNotFound, "no key"),
		"draining":  qs.Errorf(qs.ErrDraining, "elsewhere"),
		"internal":  qs.Errorf(qs.ErrInternal, "broken"),
		"no code":   errors.New("broken"),
	}
	var here, there bytes.Buffer
	logged := func(b *bytes.Buffer) []qs.Interceptor {
		return []qs.Interceptor{qs.LogCalls(slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug})))}
	}
	method := qs.Define[string, int]("test/levels")
	begun := make(chan struct{})
	t.Run("calls", func(t *testing.T) { // the buffers are read when its nodes are closed
		s := server(t, qs.Config{ServerInterceptors: logged(&there)}, func(n *qs.Node) {
			method.Handle(n, func(ctx context.Context, how string) (int, error) {
				if how == "canceled" {
					close(begun)
					<-ctx.Done()
					return 0, fmt.Errorf("given up")
				}
				return 0, answers[how]
			})
		})
		n := open(t, "tcp://", qs.Config{ClientInterceptors: logged(&here)})
		to := peer(t, n, s.Addr().String())
		for how, level := range map[string]string{"none": "DEBUG", "own": "INFO", "not found": "INFO", "draining": "INFO", "internal": "WARN", "no code": "WARN"} {
			here.Reset()
			_, _ = method.Call(testContext(t), to, how)
			require.Contains(t, here.String(), "level="+level, how)
			if code := qs.CodeOf(answers[how]); code >= qs.ErrNotFound {
				require.Contains(t, strings.ReplaceAll(here.String(), `"`, ""), "code="+code.Error()+" fate=")
			} else {
				require.NotContains(t, here.String(), "code=", how)
			}
		}
		here.Reset()
		there.Reset()
		ctx, cancel := context.WithCancel(testContext(t))
		go func() {
			<-begun
			cancel()
		}()
		_, err := method.Call(ctx, to, "canceled")
		require.ErrorIs(t, err, qs.ErrCanceled)
		require.Contains(t, here.String(), "level=DEBUG")
	})
	require.Contains(t, there.String(), `error="given up"`)
	require.Contains(t, there.String(), "level=DEBUG")
	require.NotContains(t, there.String(), "level=WARN")
}

// TestInterceptorMetadata checks that a client's interceptor adds metadata by WithMetadata in the
// context that it gives to next, for each attempt anew, beside what the caller has sent; that a
// change of Call.Metadata stays; and that an invalid name fails the call, which did not run.
func TestInterceptorMetadata(t *testing.T) {
	t.Parallel()
	method := qs.Define[string, string]("test/metadata")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		method.Handle(n, func(ctx context.Context, _ string) (string, error) {
			var all []string
			for name, value := range qs.CallFrom(ctx).Metadata.All() {
				all = append(all, name+"="+value)
			}
			slices.Sort(all)
			return strings.Join(all, " "), nil
		})
	})
	token := "token"
	n := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{
		func(ctx context.Context, c *qs.Call, next func(context.Context) error) error {
			var err error
			if c.Metadata, err = c.Metadata.With("tenant", "changed"); err != nil {
				return err
			}
			_ = next(qs.WithMetadata(ctx, token, "first"))
			return next(qs.WithMetadata(ctx, token, "second"))
		},
		func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
			return next(qs.WithMetadata(ctx, "inner", "yes"))
		},
	}})
	to := peer(t, n, s.Addr().String())
	ctx := qs.WithMetadata(qs.WithMetadata(testContext(t), "tenant", "blue"), "trace", "7")
	got, err := method.Call(ctx, to, "")
	require.NoError(t, err)
	require.Equal(t, "inner=yes tenant=changed token=second trace=7", got)
	token = "No Such Name"
	_, err = method.Call(ctx, to, "")
	require.ErrorIs(t, err, qs.ErrInvalid)
	require.ErrorContains(t, err, token)
	require.Equal(t, qs.NotRun, qs.FateOf(err))
}
