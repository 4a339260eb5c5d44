package tcp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

func TestMessages(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		a := open(t, "tcp://", opts, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		to := lookup(t, a, b.cls.Addr().String())

		sendUnexpected(t, a.ctx(), to, 7, "hello", a, b)
		text, from, tag := recvUnexpected(t, b.ctx(), a, b)
		require.Equal(t, "hello", text)
		require.Equal(t, na.Tag(7), tag)
		require.Equal(t, a.cls.Addr(), from.Named())

		buf := make([]byte, 64)
		recv, got := newOp(a.ctx())
		require.NoError(t, a.ctx().RecvExpected(recv, to, 9, buf))
		send, sent := newOp(b.ctx())
		require.NoError(t, b.ctx().SendExpected(send, from, 9, []byte("answer")))
		requireSuccess(t, "send answer", sent, a, b)
		r := requireSuccess(t, "answer", got, a, b)
		require.Equal(t, "answer", string(buf[:r.N]))

		sendUnexpected(t, b.ctx(), from, 8, "back", a, b)
		text, _, _ = recvUnexpected(t, a.ctx(), a, b)
		require.Equal(t, "back", text)
	})
}
