package loglimit

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
