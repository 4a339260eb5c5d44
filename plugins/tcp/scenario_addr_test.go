package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// hostsResolver is a resolver of made-up names.
type hostsResolver map[string][]string

func (h hostsResolver) LookupNetIP(_ context.Context, network, host string) ([]netip.Addr, error) {
	if network != "ip" {
		return nil, errors.New("want both kinds of addresses")
	}
	all, ok := h[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var ips []netip.Addr
	for _, a := range all {
		ips = append(ips, netip.MustParseAddr(a))
	}
	return ips, nil
}

func TestLookup(t *testing.T) {
	world := hostsResolver{
		"four": {"10.0.0.7"}, "six": {"2001:db8::7"}, "both": {"2001:db8::7", "10.0.0.7", "10.0.0.8"},
		"mapped": {"::ffff:10.0.0.9"}, "none": {}, "ten": nil, "wild": {"0.0.0.0"}, "node-7.example.org": {"10.0.0.7"},
	}
	for i := range 10 {
		world["ten"] = append(world["ten"], fmt.Sprintf("10.0.0.%d", i+1))
	}
	rows := []struct {
		text, want string
		code       na.Code
		says       string
	}{
		{text: "tcp://10.0.0.7:9000", want: "tcp://10.0.0.7:9000"},
		{text: "tcp://10.0.0.7:9000#3", want: "tcp://10.0.0.7:9000#3"},
		{text: "tcp://10.0.0.7:09000", want: "tcp://10.0.0.7:9000"},
		{text: "tcp://[2001:DB8:0::7]:9000", want: "tcp://[2001:db8::7]:9000"},
		{text: "tcp://[::ffff:10.0.0.7]:9000", want: "tcp://10.0.0.7:9000"},
		{text: "tcp://[fe80::1%eth7]:9000", want: "tcp://[fe80::1%eth7]:9000"},
		{text: "tcp://four:1", want: "tcp://10.0.0.7:1"},
		{text: "tcp://six:65535#1", want: "tcp://[2001:db8::7]:65535#1"},
		{text: "tcp://both:9000", want: "tcp://[2001:db8::7]:9000|10.0.0.7:9000|10.0.0.8:9000"},
		{text: "tcp://both:9000#2", want: "tcp://[2001:db8::7]:9000|10.0.0.7:9000|10.0.0.8:9000#2"},
		{text: "tcp://10.0.0.7:9000|[2001:DB8::7]:9001#2", want: "tcp://10.0.0.7:9000|[2001:db8::7]:9001#2"},
		{text: "tcp://ten:1", want: "tcp://10.0.0.1:1|10.0.0.2:1|10.0.0.3:1|10.0.0.4:1|10.0.0.5:1|10.0.0.6:1|10.0.0.7:1|10.0.0.8:1"},
		{text: "tcp://10.0.0.7:9000|four:9000", code: na.ErrInvalid, says: "a host name among several addresses"},
		{text: "tcp://10.0.0.7:9000|", code: na.ErrInvalid, says: "missing port in address"},
		{text: "tcp://1.0.0.1:1|1.0.0.2:1|1.0.0.3:1|1.0.0.4:1|1.0.0.5:1|1.0.0.6:1|1.0.0.7:1|1.0.0.8:1|1.0.0.9:1", code: na.ErrInvalid,
			says: "has 9 addresses, the limit is 8"},
		{text: "tcp://mapped:9000", want: "tcp://10.0.0.9:9000"},
		{text: "tcp://node-7.example.org:9000", want: "tcp://10.0.0.7:9000"},
		{text: "tcp://absent:9000", code: na.ErrNoEntry, says: "host absent was not found: no such host"},
		{text: "tcp://none:9000", code: na.ErrNoEntry, says: "host none has no address"},
		{text: "tcp://wild:9000", code: na.ErrInvalid, says: "wildcard address"},
		{text: "tcp://0.0.0.0:9000", code: na.ErrInvalid, says: "wildcard address"},
		{text: "tcp://[::]:9000", code: na.ErrInvalid, says: "wildcard address"},
		{text: "tcp://four", code: na.ErrInvalid, says: "missing port in address, want tcp://host:port"},
		{text: "tcp://2001:db8::7:9000", code: na.ErrInvalid, says: "want tcp://host:port or tcp://[IPv6 address]:port"},
		{text: "tcp://:9000", code: na.ErrInvalid, says: "has no host"},
		{text: "tcp://four:0", code: na.ErrInvalid, says: "1 to 65535"},
		{text: "tcp://four:65536", code: na.ErrInvalid, says: "1 to 65535"},
		{text: "tcp://four:http", code: na.ErrInvalid, says: "1 to 65535"},
		{text: "tcp://four:", code: na.ErrInvalid, says: "1 to 65535"},
		{text: "tcp://four:80/path", code: na.ErrInvalid, says: "1 to 65535"},
		{text: "tcp://@0123456789abcdef", code: na.ErrInvalid, says: "does not listen"},
		{text: "udp://four:1", code: na.ErrUnsupported, says: "tcp"},
		{text: "four:1", code: na.ErrInvalid, says: "scheme"},
	}
	n := open(t, "tcp://", tcp.Options{Resolver: world}, na.Config{}, 1)
	for _, row := range rows {
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Lookup(o, row.text))
		driveUntil(t, "lookup "+row.text, end.done, n)
		if row.want != "" {
			require.NoError(t, end.Err, row.text)
			require.Equal(t, row.want, end.Addr.String())
			continue
		}
		require.ErrorIs(t, end.Err, row.code, row.text)
		require.ErrorContains(t, end.Err, row.says, row.text)
	}
}

// TestLookupAtOnce checks that numeric addresses need neither Progress nor a goroutine.
func TestLookupAtOnce(t *testing.T) {
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	o, end := newOp(n.ctx())
	require.NoError(t, n.ctx().Lookup(o, "tcp://10.0.0.7:9000"))
	n.ctx().Trigger(0)
	require.Equal(t, 1, end.n)
	require.NoError(t, end.Err)
}

// blockingResolver is a resolver that blocks until its caller cancels.
type blockingResolver struct{ asked chan string }

func (b blockingResolver) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	b.asked <- host
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCancelLookup checks that a lookup is canceled at once although the resolver blocks; so is one
// that is in progress at Close.
func TestCancelLookup(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		dns := blockingResolver{make(chan string, 2)}
		opts.Resolver = dns
		n := open(t, "tcp://", opts, na.Config{}, 1)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().Lookup(o, "tcp://slow:1"))
		require.Equal(t, "slow", <-dns.asked)
		cancelNow(t, n.ctx(), o, end)

		o, end = newOp(n.ctx())
		require.NoError(t, n.ctx().Lookup(o, "tcp://slower:1"))
		require.Equal(t, "slower", <-dns.asked)
		n.ctx().Close()
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n)
		requireCode(t, na.ErrClosed, end.Err)
	})
}

// TestUnresolved checks that an address that was only parsed may be used if it is canonical; else
// the error states the remedy.
func TestUnresolved(t *testing.T) {
	n := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
	for text, want := range map[string]struct {
		code na.Code
		says string
	}{
		"tcp://localhost:9000":          {na.ErrInvalid, "Lookup"},
		"tcp://[::ffff:10.0.0.7]:9000":  {na.ErrInvalid, "canonical form tcp://10.0.0.7:9000"},
		"tcp://[2001:db8:0:0::7]:9000":  {na.ErrInvalid, "canonical form tcp://[2001:db8::7]:9000"},
		"tcp://10.0.0.7":                {na.ErrInvalid, "port"},
		"tcp://10.0.0.7:0":              {na.ErrInvalid, "port 0"},
		"tcp://0.0.0.0:9000":            {na.ErrInvalid, "wildcard address"},
		"tcp://10.0.0.7:1|10.0.0.8":     {na.ErrInvalid, "is not an IP address with a port"},
		"tcp://@00112233445566778899aa": {na.ErrUnreachable, "does not listen"},
	} {
		addr, err := na.ParseAddr(text)
		require.NoError(t, err)
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, addr, 1, nil))
		n.ctx().Trigger(0)
		require.Equal(t, 1, end.n)
		require.ErrorIs(t, end.Err, want.code)
		require.ErrorContains(t, end.Err, want.says)
		require.Equal(t, na.NotRun, end.Fate)
	}
}

func TestListenErrors(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = taken.Close() }()
		opts.Resolver = hostsResolver{"away": {"192.0.2.1"}}
		for rest, want := range map[string]struct {
			code na.Code
			says string
		}{
			taken.Addr().String(): {na.ErrAddrInUse, "listen on " + taken.Addr().String()},
			"192.0.2.1:0":         {na.ErrAddrInvalid, "listen on 192.0.2.1:0"},
			"127.0.0.1":           {na.ErrInvalid, "want tcp://host:port"},
			"127.0.0.1:70000":     {na.ErrInvalid, "port"},
			"127.0.0.1:x1":        {na.ErrInvalid, "port"},
			"127.0.0.1:0/path":    {na.ErrInvalid, "port"},
			"[::1:0":              {na.ErrInvalid, "want tcp://host:port"},
			"absent:9000":         {na.ErrNoEntry, "host absent was not found"},
			"127.0.0.1:http":      {na.ErrInvalid, "port"},
			"away:0":              {na.ErrAddrInvalid, "listen on 192.0.2.1:0"},
		} {
			_, err := na.Open("tcp://"+rest, na.Config{Plugins: []na.Plugin{tcp.New(opts)}})
			require.ErrorIs(t, err, want.code, rest)
			require.ErrorContains(t, err, want.says, rest)
		}
	})
}

func TestOptions(t *testing.T) {
	_, err := na.Open("tcp://", na.Config{Plugins: []na.Plugin{tcp.New(tcp.Options{
		Advertise: "host:1", Spread: 257, MaxHalfOpen: -1, HandshakeTimeout: -1, WriteTimeout: -1,
	})}})
	require.ErrorIs(t, err, na.ErrInvalid)
	for _, field := range []string{"Advertise", "Spread", "MaxHalfOpen", "HandshakeTimeout", "WriteTimeout"} {
		require.ErrorContains(t, err, field)
	}
}

// TestNames checks that the address that a class reports can be dialed by others.
func TestNames(t *testing.T) {
	six := true
	if l, err := net.Listen("tcp6", "[::1]:0"); err == nil {
		_ = l.Close()
	} else {
		six = false
	}
	rows := []struct {
		listen, advertise, want string
	}{
		{"127.0.0.1:0", "", `^tcp://127\.0\.0\.1:[1-9]\d*$`},
		{"localhost:0", "", `^tcp://127\.0\.0\.1:[1-9]\d*$`},
		{"[::1]:0", "", `^tcp://\[::1\]:[1-9]\d*$`},
		{"lo:0", "", `^tcp://127\.0\.0\.1:[1-9]\d*$`},
		{":0", "", `^tcp://[1-9][0-9.]+:[1-9]\d*$|^tcp://\[[0-9a-f:]*[1-9a-f]\]:[1-9]\d*$`},
		{"0.0.0.0:0", "", `^tcp://[1-9][0-9.]+:[1-9]\d*$`},
		{"[::]:0", "", `^tcp://[1-9][0-9.]+:[1-9]\d*$|^tcp://\[[0-9a-f:]*[1-9a-f]\]:[1-9]\d*$`},
		{"127.0.0.1:0", "203.0.113.9", `^tcp://203\.0\.113\.9:[1-9]\d*$`},
		{"127.0.0.1:0", "203.0.113.9:700", `^tcp://203\.0\.113\.9:700$`},
		{"127.0.0.1:0", "2001:db8::9", `^tcp://\[2001:db8::9\]:[1-9]\d*$`},
		{"127.0.0.1:0", "[2001:db8::9]:7", `^tcp://\[2001:db8::9\]:7$`},
	}
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		for _, row := range rows {
			if _, err := net.InterfaceByName("lo"); strings.HasPrefix(row.listen, "[") && !six || strings.HasPrefix(row.listen, "lo:") && err != nil {
				continue
			}
			opts := opts
			opts.Advertise = row.advertise
			b := open(t, "tcp://"+row.listen, opts, na.Config{}, 1)
			require.Regexp(t, regexp.MustCompile(row.want), b.cls.Addr().String(), row.listen)
			if row.advertise == "" {
				a := open(t, "tcp://", tcp.Options{}, na.Config{}, 1)
				sendUnexpected(t, a.ctx(), b.cls.Addr(), 1, "hi", a, b)
				_, _, _ = recvUnexpected(t, b.ctx(), a, b)
				a.close()
			}
			b.close()
		}
	})
}

// TestAdvertise checks that peers get the address that the class advertises, and answer on the
// session that it made when its packets have another source address.
func TestAdvertise(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		behind := opts
		behind.Advertise = "203.0.113.9:700"
		a := open(t, "tcp://127.0.0.1:0", behind, na.Config{}, 1)
		b := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		sendUnexpected(t, a.ctx(), b.cls.Addr(), 1, "hi", a, b)
		_, from, _ := recvUnexpected(t, b.ctx(), a, b)
		require.NotEqual(t, a.cls.Addr(), from.Named(), "an address that cannot be proved is not taken for the sender's name")
		sendUnexpected(t, b.ctx(), from, 1, "back", a, b)
		text, _, _ := recvUnexpected(t, a.ctx(), a, b)
		require.Equal(t, "back", text)
		sendUnexpected(t, a.ctx(), a.cls.Addr(), 1, "to myself", a)
		text, _, _ = recvUnexpected(t, a.ctx(), a)
		require.Equal(t, "to myself", text)
	})
}

// TestForgedListenAddress checks that a peer that claims to listen at an address of another machine is not
// taken for that one.
func TestForgedListenAddress(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		for i, row := range []struct {
			listen string
			taken  bool
		}{
			{"tcp://127.0.0.1:9", true},
			{"tcp://203.0.113.9:9", false},
			{"tcp://127.0.0.1:0", false},
			{"udp://127.0.0.1:9", false},
			{"tcp://localhost:9", false},
			{strings.Repeat("x", 3000), false},
		} {
			g := greeting()
			g.Listen = row.listen
			r := rawJoin(t, n, g)
			r.send(mail, []byte(fmt.Sprint(i)))
			text, from, _ := recvUnexpected(t, n.ctx(), n)
			require.Equal(t, fmt.Sprint(i), text)
			want := fmt.Sprintf("tcp://@%x", g.Incarnation[:8])
			if row.taken {
				want = row.listen
			}
			require.Equal(t, want, from.String())
		}
	})
}

// TestDialSelf checks that an address that leads back to the class under a name that it does not
// know fails at once.
func TestDialSelf(t *testing.T) {
	eachCarrier(t, func(t *testing.T, opts tcp.Options) {
		opts.Advertise = "203.0.113.9"
		n := open(t, "tcp://127.0.0.1:0", opts, na.Config{}, 1)
		_, port, err := net.SplitHostPort(hostPort(n))
		require.NoError(t, err)
		begin := time.Now()
		o, end := newOp(n.ctx())
		require.NoError(t, n.ctx().SendUnexpected(o, na.MakeAddr("tcp://127.0.0.1:"+port, 0), 1, nil))
		driveUntil(t, "refusal", end.done, n)
		requireCode(t, na.ErrUnreachable, end.Err)
		require.ErrorContains(t, end.Err, "itself")
		require.Less(t, time.Since(begin), 2*time.Second)
	})
}
