package worker

import "time"

// Impatient has a worker that ended started again soon, whenever it ended.
func Impatient(o *Options) { o.minDelay, o.maxDelay = time.Millisecond, 5*time.Millisecond }

// Speak has a client speak another version of the protocol.
func Speak(version int) func(*Options) { return func(o *Options) { o.protocol = version } }
