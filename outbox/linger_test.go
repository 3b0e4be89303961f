package outbox

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/hapax-dev/hapax/engine/storage"
)

// Of each ordering key one message is in flight: the time that a client lingers would be added to each.
func TestClientDoesNotLingerUnlessItIsAskedTo(t *testing.T) {
	for want, own := range map[time.Duration][]kgo.Opt{0: nil, time.Second: {kgo.ProducerLinger(time.Second)}} {
		c, err := kgo.NewClient(clientOptions(&Options{Client: own}, storage.Identity{}, new(batchLimits).of, new(holds))...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.OptValue("ProducerLinger"); got != want {
			t.Errorf("the client lingers for %v, want %v", got, want)
		}
		c.Close()
	}
}
