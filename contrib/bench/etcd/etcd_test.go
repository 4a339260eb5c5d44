package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestEtcd checks that a server of etcd serves its own services on a Node, over tcp and over shared
// memory, and etcd's own client uses keys, transactions, errors, leases that are kept alive,
// watches, elections.
func TestEtcd(t *testing.T) {
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = t.TempDir(), "fatal", []string{"/dev/null"}
	local := func() url.URL { return url.URL{Scheme: "http", Host: "127.0.0.1:0"} }
	cfg.ListenClientUrls, cfg.ListenPeerUrls = []url.URL{local()}, []url.URL{local()}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = []url.URL{local()}, []url.URL{local()}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(30 * time.Second):
		t.Fatal("etcd is not ready after 30 s")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	for name, at := range map[string][2]string{"tcp": {"tcp://127.0.0.1:0", "tcp://"}, "sm": {"sm://*", "sm://"}} {
		t.Run(name, func(t *testing.T) {
			open := func(addr string) *qs.Node {
				c := qs.Config{Logger: slog.New(slog.DiscardHandler), ShutdownTimeout: time.Second}
				if name == "sm" {
					c.HG.NA.Plugins = []hg.Plugin{sm.New(sm.Options{Dir: dir})}
				}
				n, err := qs.Open(addr, c)
				require.NoError(t, err)
				return n
			}
			server := open(at[0])
			s := grpcqs.NewServer(server)
			pb.RegisterKVServer(s, v3rpc.NewQuotaKVServer(e.Server))
			pb.RegisterLeaseServer(s, v3rpc.NewQuotaLeaseServer(e.Server))
			pb.RegisterWatchServer(s, v3rpc.NewWatchServer(e.Server))
			pb.RegisterClusterServer(s, v3rpc.NewClusterServer(e.Server))
			pb.RegisterAuthServer(s, v3rpc.NewAuthServer(e.Server))
			serving, stop := context.WithCancel(context.Background())
			served := make(chan error, 1)
			go func() { served <- server.Serve(serving) }()
			client := open(at[1])
			to, err := client.Peer(serving, server.Addr().String())
			require.NoError(t, err)
			testClient(t, name, grpcqs.NewClient(to))
			require.NoError(t, client.Close())
			stop()
			<-served
		})
	}
}

// testClient does what etcd's client does.
func testClient(t *testing.T, prefix string, c *grpcqs.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl := clientv3.NewCtxClient(ctx)
	cl.KV = clientv3.NewKVFromKVClient(pb.NewKVClient(c), cl)
	cl.Lease = clientv3.NewLeaseFromLeaseClient(pb.NewLeaseClient(c), cl, time.Second)
	cl.Watcher = clientv3.NewWatchFromWatchClient(pb.NewWatchClient(c), cl)
	cl.Cluster = clientv3.NewClusterFromClusterClient(pb.NewClusterClient(c), cl)
	defer func() { // before the Node
		require.NoError(t, cl.Watcher.Close())
		require.NoError(t, cl.Lease.Close())
	}()
	key := func(i int) string { return fmt.Sprintf("%s/%04d", prefix, i) }

	watched := cl.Watch(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	require.True(t, (<-watched).Created)
	const keys = 200
	for i := range keys {
		_, err := cl.Put(ctx, key(i), fmt.Sprint(i))
		require.NoError(t, err)
	}
	for i := 0; i < keys; { // each event once, in its order
		w, ok := <-watched
		require.True(t, ok)
		require.NoError(t, w.Err())
		for _, e := range w.Events {
			require.Equal(t, key(i), string(e.Kv.Key))
			i++
		}
	}
	all, err := cl.Get(ctx, prefix+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, all.Kvs, keys)

	txn, err := cl.Txn(ctx).If(clientv3.Compare(clientv3.Value(key(0)), "=", "0")).Then(clientv3.OpPut(key(0), "changed"), clientv3.OpGet(key(0))).Commit()
	require.NoError(t, err)
	require.True(t, txn.Succeeded)
	require.Equal(t, "changed", string(txn.Responses[1].GetResponseRange().Kvs[0].Value))

	_, err = cl.Put(ctx, "", "no key")
	require.ErrorIs(t, err, rpctypes.ErrEmptyKey)
	_, err = cl.Get(ctx, key(0), clientv3.WithRev(1<<40))
	require.ErrorIs(t, err, rpctypes.ErrFutureRev)
	_, err = cl.Put(ctx, key(0), "x", clientv3.WithLease(4711))
	require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)

	lease, err := cl.Grant(ctx, 60)
	require.NoError(t, err)
	alive, err := cl.KeepAlive(ctx, lease.ID)
	require.NoError(t, err)
	require.Equal(t, lease.ID, (<-alive).ID)
	_, err = cl.Put(ctx, prefix+"-leased", "x", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	_, err = cl.Revoke(ctx, lease.ID)
	require.NoError(t, err)
	gone, err := cl.Get(ctx, prefix+"-leased")
	require.NoError(t, err)
	require.Empty(t, gone.Kvs)

	session, err := concurrency.NewSession(cl, concurrency.WithTTL(60))
	require.NoError(t, err)
	election := concurrency.NewElection(session, prefix+"-election")
	require.NoError(t, election.Campaign(ctx, "me"))
	leader, err := election.Leader(ctx)
	require.NoError(t, err)
	require.Equal(t, "me", string(leader.Kvs[0].Value))
	require.NoError(t, election.Resign(ctx))
	require.NoError(t, session.Close())

	members, err := cl.MemberList(ctx)
	require.NoError(t, err)
	require.Len(t, members.Members, 1)
}
