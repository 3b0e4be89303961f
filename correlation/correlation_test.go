package correlation_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/hapax-dev/hapax/correlation"
)

func TestAnIDIsSetOnceForEachLogicalSend(t *testing.T) {
	headers := map[string]string{"type": "prize"}
	id := correlation.Ensure(headers)
	if parsed, err := uuid.Parse(id); err != nil || parsed.Version() != 7 {
		t.Fatalf("the id is %q, no UUIDv7: %v", id, err)
	}
	for range 3 { // retries
		if again := correlation.Ensure(headers); again != id || headers[correlation.Header] != id {
			t.Fatalf("an attempt has %q and the header %q, want %q", again, headers[correlation.Header], id)
		}
	}
	if len(headers) != 2 || headers["type"] != "prize" {
		t.Errorf("the headers are %q", headers)
	}
	if other := correlation.Ensure(map[string]string{}); other == id {
		t.Errorf("two sends have the id %q", id)
	}
}

func TestAnIDThatIsPresentIsKept(t *testing.T) {
	headers := map[string]string{correlation.Header: "order-17"}
	if id := correlation.Ensure(headers); id != "order-17" || headers[correlation.Header] != "order-17" {
		t.Errorf("the id is %q, the header %q", id, headers[correlation.Header])
	}
	headers[correlation.Header] = ""
	if id := correlation.Ensure(headers); id == "" || headers[correlation.Header] != id {
		t.Errorf("an empty header gives %q, the header is %q", id, headers[correlation.Header])
	}
}
