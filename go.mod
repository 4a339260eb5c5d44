module github.com/quicksilver-rpc/quicksilver

go 1.26.0

require (
	github.com/libp2p/go-reuseport v0.4.0
	github.com/stretchr/testify v1.12.1
	github.com/vmihailenco/msgpack/v5 v5.4.1
	golang.org/x/crypto v0.57.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
