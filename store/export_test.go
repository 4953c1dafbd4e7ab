package store

import "time"

// FreeEvery has a store look that often for numbers to be given up.
func FreeEvery(o *Options, d time.Duration) { o.freeEvery = d }
