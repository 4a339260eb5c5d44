package main

import (
	"crypto/tls"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A secrets holds the names of the TLS files. If all are empty, TLS is not used.
type secrets struct{ cert, key, ca, serverName string }

func (s *secrets) flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.cert, "cert", "", "PEM `file` with the certificate of this process; --cert or --ca turns TLS on")
	fs.StringVar(&s.key, "key", "", "PEM `file` with the key of --cert")
	fs.StringVar(&s.ca, "ca", "", "PEM `file` with the authorities that must have signed the certificates of peers; without it those of the system, and peers that connect need no certificate")
	fs.StringVar(&s.serverName, "server-name", "", "`name` that peers' certificates must carry, instead of the host in the address")
	markConnection(fs, "cert", "key", "ca", "server-name")
}

// args returns the flags with which another qs process has the same TLS configuration.
func (s *secrets) args() (args []string) {
	for _, f := range [][2]string{{"--cert", s.cert}, {"--key", s.key}, {"--ca", s.ca}, {"--server-name", s.serverName}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	return args
}

// config returns the TLS configuration, or nil if TLS is not used.
func (s *secrets) config() (*tls.Config, error) {
	switch {
	case *s == secrets{}:
		return nil, nil
	case s.cert == "" && s.key != "":
		return nil, usageError{"--key needs --cert: the certificate of the key"}
	case s.cert == "" && s.ca == "":
		return nil, usageError{"--server-name needs --ca, or --cert and --key: without them there is no TLS"}
	case s.cert != "" && s.key == "":
		return nil, usageError{"--cert needs --key: the key of the certificate"}
	}
	cfg, err := qs.LoadTLS(s.cert, s.key, s.ca)
	if err != nil {
		return nil, fmt.Errorf("--cert, --key and --ca: %w", err)
	}
	cfg.ServerName = s.serverName
	return cfg, nil
}

// plugins returns a TLS-enabled transport for addr, or nil if TLS is not used.
func (s *secrets) plugins(addr string) ([]na.Plugin, error) {
	cfg, err := s.config()
	if cfg == nil || err != nil {
		return nil, err
	}
	switch scheme, _, _ := strings.Cut(addr, "://"); scheme {
	case "tcp":
		return []na.Plugin{tcp.New(tcp.Options{TLS: cfg})}, nil
	case "udp":
		return []na.Plugin{udp.New(udp.Options{TLS: cfg})}, nil
	}
	return nil, usageError{fmt.Sprintf("--cert, --key and --ca are for tcp:// and udp://, not %q: messages would not be encrypted", addr)}
}
