package all

import (
	_ "github.com/quicksilver-rpc/quicksilver/plugins/sm"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	_ "github.com/quicksilver-rpc/quicksilver/plugins/udp"
)
