package tcp_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// ExampleOptions_tls configures mutual TLS: every process of the cluster has a certificate of the
// cluster's own authority, which names the addresses at which the process is dialed, and accepts no
// peer without one.
func ExampleOptions_tls() {
	open := func(address, certFile, keyFile, authorityFile string) (*na.Class, error) {
		own, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, err
		}
		pem, err := os.ReadFile(authorityFile)
		if err != nil {
			return nil, err
		}
		cluster := x509.NewCertPool()
		cluster.AppendCertsFromPEM(pem)
		plugin := tcp.New(tcp.Options{TLS: &tls.Config{
			Certificates: []tls.Certificate{own},
			RootCAs:      cluster,                        // of those that are dialled
			ClientCAs:    cluster,                        // of those that connect
			ClientAuth:   tls.RequireAndVerifyClientCert, // leave it out, and clients need no certificate
		}})
		return na.Open(address, na.Config{Plugins: []na.Plugin{plugin}})
	}
	_, _ = open("tcp://10.0.0.7:9000", "node.pem", "node.key", "cluster.pem")
}
