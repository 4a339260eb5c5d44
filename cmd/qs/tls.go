package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// secrets are the files of TLS; without any of them there is none.
type secrets struct{ cert, key, ca string }

func (s *secrets) flags(fs *flag.FlagSet) {
	fs.StringVar(&s.cert, "cert", "", "PEM `file` with the certificate to show to peers; this and -ca turn TLS on")
	fs.StringVar(&s.key, "key", "", "PEM `file` with the key of -cert")
	fs.StringVar(&s.ca, "ca", "", "PEM `file` with the authorities that peers' certificates must be of; without it those of the system, and who connects needs none")
}

// args are the flags that give another qs the same.
func (s *secrets) args() (args []string) {
	for _, f := range [][2]string{{"-cert", s.cert}, {"-key", s.key}, {"-ca", s.ca}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	return args
}

// config returns nil when there is to be no TLS. Its errors name file and flag.
func (s *secrets) config() (*tls.Config, error) {
	switch {
	case *s == secrets{}:
		return nil, nil
	case s.cert == "" && s.key != "":
		return nil, usageError{"-key needs -cert: the certificate of the key"}
	case s.cert != "" && s.key == "":
		return nil, usageError{"-cert needs -key: the key of the certificate"}
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if s.cert != "" {
		cert, err := s.read("-cert", s.cert)
		if err != nil {
			return nil, err
		}
		key, err := s.read("-key", s.key)
		if err != nil {
			return nil, err
		}
		own, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("-cert %s and -key %s are no certificate with its key: %w", s.cert, s.key, err)
		}
		cfg.Certificates = []tls.Certificate{own}
	}
	if s.ca != "" {
		pem, err := s.read("-ca", s.ca)
		if err != nil {
			return nil, err
		}
		trusted := x509.NewCertPool()
		if !trusted.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-ca %s holds no certificate in PEM", s.ca)
		}
		cfg.RootCAs, cfg.ClientCAs, cfg.ClientAuth = trusted, trusted, tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

func (s *secrets) read(flag, file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", flag, err)
	}
	return b, nil
}

// plugins returns the transport with TLS, if there is to be any.
func (s *secrets) plugins() ([]na.Plugin, error) {
	cfg, err := s.config()
	if cfg == nil || err != nil {
		return nil, err
	}
	return []na.Plugin{tcp.New(tcp.Options{TLS: cfg})}, nil
}
