package memtable

import (
	"bytes"

	"github.com/hapax-dev/hapax/engine/storage"
	"github.com/hapax-dev/hapax/weekbucket"
)

// SplitPrefix splits a claim's key into the prefix of its bucket and the tail. The tail of an
// invalid key is nil.
func SplitPrefix(key []byte) (prefix, tail []byte) {
	for at := 0; ; {
		i := bytes.IndexByte(key[at:], 0)
		if i < 0 || at+i+1 >= len(key) {
			return key, nil
		}
		at += i + 2
		switch key[at-1] {
		case 0xFF:
		case 0x01:
			if len(key)-at < weekbucket.KeySize {
				return key, nil
			}
			return key[:at+weekbucket.KeySize], key[at+weekbucket.KeySize:]
		default:
			return key, nil
		}
	}
}

// firstBucket returns the prefix of the first claim's bucket, and the number of leading claims in
// it.
func firstBucket(claims []storage.ClaimWrite) (prefix []byte, n int) {
	prefix, tail := SplitPrefix(claims[0].Key)
	same := bytes.HasPrefix
	if tail == nil { // an invalid key
		same = bytes.Equal
	}
	for n = 1; n < len(claims) && same(claims[n].Key, prefix); n++ {
	}
	return prefix, n
}
