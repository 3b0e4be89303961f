package weekbucket_test

import (
	"fmt"
	"time"

	"github.com/hapax-dev/hapax/weekbucket"
)

func ExampleOf() {
	sunday := time.Date(2025, 5, 11, 23, 30, 0, 0, time.UTC)
	for _, t := range []time.Time{sunday, sunday.Add(time.Hour)} {
		w, err := weekbucket.Of(t)
		fmt.Println(t.Format("Mon 15:04"), "->", w, err)
	}
	// Output:
	// Sun 23:30 -> 2025-05-05 <nil>
	// Mon 00:30 -> 2025-05-12 <nil>
}

func ExampleNextDaily() {
	now := time.Date(2025, 5, 11, 23, 30, 0, 0, time.UTC)
	fmt.Println(weekbucket.NextDaily(now, 3*time.Hour))
	// Output: 2025-05-12 03:00:00 +0000 UTC
}
