package events

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// attemptTimeout bounds one POST, from the look-up of the name to the answer.
	attemptTimeout = 10 * time.Second
	// breakerAfter failures in a row open a receiver's breaker: from then on one
	// attempt every probeEvery, whatever waits.
	breakerAfter = 5
	probeEvery   = 30 * time.Second
	// maxRetryAfter is the longest that a receiver can ask us to wait.
	maxRetryAfter = time.Hour
	// jitterShare is how far a delay is spread, up and down.
	jitterShare = 0.2
)

// delays are the waits after the first attempt, the second and so on. After the
// last of them comes the last attempt.
var delays = [...]time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 8 * time.Minute}

// maxTries is how many attempts one round has.
const maxTries = len(delays) + 1

// retryDelay is the wait after a number of tries, spread by jitter in [0, 1).
// more is false when that was the last.
func retryDelay(tries int, jitter float64) (wait time.Duration, more bool) {
	if tries < 1 || tries >= maxTries {
		return 0, false
	}
	return time.Duration(float64(delays[tries-1]) * (1 - jitterShare + 2*jitterShare*jitter)), true
}

// parseRetryAfter reads the header of RFC 9110 section 10.2.3, bounded; 0 when
// there is none that can be read.
func parseRetryAfter(h http.Header, now time.Time) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0
	}
	var wait time.Duration
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		wait = time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	} else if strings.Trim(value, "0123456789") == "" {
		wait = maxRetryAfter // a number too large for us
	} else if date, err := http.ParseTime(value); err == nil {
		wait = date.Sub(now)
	}
	return min(max(wait, 0), maxRetryAfter)
}
