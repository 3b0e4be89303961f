package bolt

import "time"

const shortLock = 50 * time.Millisecond
