package bloom_test

import (
	"bytes"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/hapax-dev/hapax/bloom"
)

func Example() {
	seen := bloom.New(bloom.Options{Expected: 1_000_000})
	fmt.Println(seen.Add(xxhash.Sum64String("order-1"))) // certainly new
	fmt.Println(seen.Add(xxhash.Sum64String("order-1"))) // maybe not: look it up in the store

	var file bytes.Buffer
	if _, err := seen.WriteTo(&file); err != nil {
		panic(err)
	}
	restored, err := bloom.Read(&file, int64(file.Len()), bloom.Options{})
	if err != nil {
		panic(err) // errors.Is(err, bloom.ErrCorrupt): rebuild from the store
	}
	fmt.Println(restored.MayContain(xxhash.Sum64String("order-1")))
	fmt.Println(restored.MayContain(xxhash.Sum64String("order-2")))
	// Output:
	// true
	// false
	// true
	// false
}
