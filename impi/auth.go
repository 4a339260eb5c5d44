package impi

import (
	"fmt"
	"strconv"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// AuthFromEnv returns the mechanisms that the environment enables, as LAM/MPI reads it: IMPI_AUTH_NONE if it is set at all,
// and IMPI_AUTH_KEY with a decimal number. lookup is os.LookupEnv, for instance.
func AuthFromEnv(lookup func(string) (string, bool)) (auth protocol.Auth, err error) {
	_, auth.None = lookup("IMPI_AUTH_NONE")
	text, ok := lookup("IMPI_AUTH_KEY")
	if !ok {
		return auth, nil
	}
	key, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		signed, bad := strconv.ParseInt(text, 10, 64)
		if bad != nil {
			return protocol.Auth{}, fmt.Errorf("impi: IMPI_AUTH_KEY is not a number of 64 bits") // and is not shown
		}
		key = uint64(signed)
	}
	auth.Key = &key
	return auth, nil
}
