package doctor

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// sentence is an error as a sentence, without the URL that net/http puts in front: a
// URL can hold a secret.
func sentence(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	text := strings.TrimSpace(err.Error())
	first, size := utf8.DecodeRuneInString(text)
	text = string(unicode.ToUpper(first)) + text[size:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// span is a length of time in one unit, rounded down.
func span(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if n := int64(d / u.unit); n > 0 {
			return count(n, u.name)
		}
	}
	return count(int64(d/time.Second), "second")
}

func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// size is a number of bytes for people.
func size(n uint64) string {
	const units = "kMGT"
	if n < 1000 {
		return count(int64(n), "byte")
	}
	f, i := float64(n)/1000, 0
	for f >= 999.5 && i < len(units)-1 {
		f /= 1000
		i++
	}
	return fmt.Sprintf("%.3g %cB", f, units[i])
}

// when is a day and minute, in UTC.
func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
