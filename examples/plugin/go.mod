// The path of this module is outside of the library's, so that the compiler refuses imports of its internal packages, as it does for a
// plugin of your own.
module example.org/plugin

go 1.26.0

require (
	github.com/quicksilver-rpc/quicksilver v0.1.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

// The library is the one of this checkout.
replace github.com/quicksilver-rpc/quicksilver => ../../
