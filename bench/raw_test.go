package bench

import (
	"strings"
	"testing"
)

func TestBarePebbleThatFailsBehindIsAnError(t *testing.T) {
	raw, err := openRawPebble(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pairs := []rawPair{{[]byte("key"), []byte("value")}}
	if err := raw.put(pairs); err != nil {
		t.Fatal(err)
	}
	p := raw.(rawPebble)
	t.Cleanup(func() { _ = p.DB.Close() })
	ended := make(chan struct{})
	go func() { // as a flush of Pebble's own would
		defer close(ended)
		p.fatal.Fatalf("writing the manifest: %s", "no space")
		t.Error("Fatalf returned")
	}()
	<-ended
	for what, err := range map[string]error{"put": raw.put(pairs), "Close": raw.Close()} {
		if err == nil || !strings.Contains(err.Error(), "no space") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
