package redact_test

import (
	"bytes"
	"fmt"

	"github.com/hapax-dev/hapax/redact"
)

// Ids that are personal data are logged as keyed hashes: the same id always has the same hash.
func ExampleHashed() {
	secret := bytes.Repeat([]byte("s"), redact.MinSecretBytes) // a service reads random bytes from its configuration
	ids := redact.Hashed(secret)
	fmt.Println(ids.Attr("id", "alice@example.com"))
	fmt.Println(ids.Text("alice@example.com")) // in an error, in this service or another one with the secret
	fmt.Println(ids.Text("bob@example.com") == ids.Text("alice@example.com"))
	// Output:
	// id=027daff4f77382613bbefed05c163c56
	// 027daff4f77382613bbefed05c163c56
	// false
}
