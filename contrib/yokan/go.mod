module github.com/quicksilver-rpc/quicksilver/contrib/yokan

go 1.26.0

require (
	github.com/quicksilver-rpc/quicksilver v0.1.0
	github.com/stretchr/testify v1.12.1
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
