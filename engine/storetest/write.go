package storetest

import (
	"fmt"
	"math/rand/v2"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// week is an arbitrary week; the adjacent ones are week-1 and week+1.
const week weekbucket.Week = 105684

func bucket(scope string, w weekbucket.Week) storage.Bucket {
	return storage.Bucket{Scope: scope, Week: w}
}

func key(b storage.Bucket, id string) []byte { return b.AppendKey(nil, []byte(id)) }

func claim(b storage.Bucket, id, record string) storage.ClaimWrite {
	return storage.ClaimWrite{Key: key(b, id), Record: []byte(record)}
}

func unclaim(b storage.Bucket, id string) storage.ClaimWrite {
	return storage.ClaimWrite{Key: key(b, id)}
}

func set(key, value string) storage.StateWrite {
	return storage.StateWrite{Key: []byte(key), Value: []byte(value)}
}

func unset(key string) storage.StateWrite { return storage.StateWrite{Key: []byte(key)} }

// numbered returns claims with the ids from-to, each with a different record.
func numbered(b storage.Bucket, from, to int) (claims []storage.ClaimWrite) {
	for i := from; i < to; i++ {
		claims = append(claims, claim(b, fmt.Sprintf("id-%06d", i), fmt.Sprintf("%v %d", b, i)))
	}
	return claims
}

// noise returns n incompressible bytes, the same for the same seed.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// noisy returns n claims with incompressible ids and records, of about 120 bytes each.
func noisy(b storage.Bucket, seed uint64, n int) (claims []storage.ClaimWrite) {
	bytes := noise(seed, n*100)
	for i := range n {
		part := bytes[i*100 : (i+1)*100]
		id := append([]byte(fmt.Sprintf("%08x", i)), part[:20]...)
		claims = append(claims, storage.ClaimWrite{Key: b.AppendKey(nil, id), Record: part[20:]})
	}
	return claims
}
