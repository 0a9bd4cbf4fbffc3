package worker

import "time"

// Impatient has a worker that ended started again soon, whenever it ended.
func Impatient(o *Options) { o.minDelay, o.maxDelay = time.Millisecond, 5*time.Millisecond }

// Hasty gives a worker little time for the next part of a file.
func Hasty(o *Options) { o.stallTimeout = 2 * time.Second }

// Speak has a client speak another version of the protocol.
func Speak(version int) func(*Options) { return func(o *Options) { o.protocol = version } }
