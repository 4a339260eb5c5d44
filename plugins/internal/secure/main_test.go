package secure

import (
	"testing"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
