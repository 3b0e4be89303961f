package correlation_test

import (
	"errors"
	"fmt"

	"github.com/hapax-dev/hapax/correlation"
)

// A producer sends a message again because the answer to its first attempt was lost. Both attempts
// carry the same id.
func ExampleEnsure() {
	var received []string
	send := func(headers map[string]string) error {
		received = append(received, headers[correlation.Header])
		if len(received) == 1 {
			return errors.New("the connection was closed")
		}
		return nil
	}

	headers := map[string]string{}
	correlation.Ensure(headers) // once for each logical send
	for err := send(headers); err != nil; err = send(headers) {
		fmt.Println(err)
	}
	fmt.Println("the same id:", received[0] == received[1])
	// Output:
	// the connection was closed
	// the same id: true
}
