package quicksilver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// LoadTLS returns a configuration for Config.TLS from PEM files, in which both sides prove who they are: cert and key are shown
// to peers, and a peer's certificate must be signed by one in ca. With three empty names it returns nil: no TLS. The error
// matches ErrInvalid when one of them is missing, or ca holds no certificate.
func LoadTLS(cert, key, ca string) (*tls.Config, error) {
	if cert == "" && key == "" && ca == "" {
		return nil, nil
	}
	if cert == "" || key == "" || ca == "" {
		return nil, fmt.Errorf("quicksilver: TLS needs files for cert, key and ca, or none of them: %w", hg.ErrInvalid)
	}
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("quicksilver: TLS: %w", err)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("quicksilver: TLS: %w", err)
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("quicksilver: TLS: %s holds no certificate: %w", ca, hg.ErrInvalid)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		RootCAs: trusted, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	}, nil
}
