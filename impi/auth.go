package impi

import (
	"fmt"
	"strconv"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

// AuthFromEnv returns the authentication mechanisms enabled by the environment, using the variables of LAM/MPI:
// IMPI_AUTH_NONE, with any value, and IMPI_AUTH_KEY, with a decimal number. lookup is os.LookupEnv or an equivalent
// function.
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
			// The error omits the value, which is secret.
			return protocol.Auth{}, fmt.Errorf("impi: IMPI_AUTH_KEY is not a 64-bit number")
		}
		key = uint64(signed)
	}
	auth.Key = &key
	return auth, nil
}
