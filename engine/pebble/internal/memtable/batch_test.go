package memtable

import (
	"encoding/binary"
	"fmt"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

const week0 = weekbucket.Week(105000)

func claimKey(scope string, week int, i uint64) []byte {
	b := storage.Bucket{Scope: scope, Week: week0 + weekbucket.Week(week)}
	id := make([]byte, 16)
	binary.BigEndian.PutUint64(id, i*0x9E3779B97F4A7C15)
	binary.BigEndian.PutUint64(id[8:], i)
	return b.AppendKey(nil, id)
}

// batchOf returns n claims over two scopes and weeks.
func batchOf(seq uint64, n int) (claims []storage.ClaimWrite) {
	for i := range n {
		k := seq*uint64(n) + uint64(i)
		claims = append(claims, storage.ClaimWrite{
			Key:    claimKey(fmt.Sprintf("scope%d", k%2), int(seq%2), k),
			Record: binary.AppendUvarint([]byte("r"), k),
		})
	}
	return claims
}
