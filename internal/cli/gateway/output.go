package gateway

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"
)

// lineWidth is what a table fits into.
const lineWidth = 100

// clean makes text that came from elsewhere fit for a terminal: control
// characters and those that reorder or hide text become "?".
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// columns is how many columns s takes in a terminal.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// cut shortens s to at most n columns, n > 0.
func cut(s string, n int) string {
	if columns(s) <= n {
		return s
	}
	used := 0
	for i, r := range s {
		if used += runeColumns(r); used > n-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// table prints rows under their headings, in aligned columns that fit in
// [lineWidth]. The widest columns are shortened for that, but never the one
// numbered whole, whose values the owner copies. A row with one cell more than
// there are headings has it on a line of its own, never shortened.
func table(w io.Writer, whole int, headings []string, rows [][]string) error {
	widths := make([]int, len(headings))
	all := append([][]string{headings}, rows...)
	for _, row := range all {
		for i := range row {
			row[i] = strings.ReplaceAll(clean(row[i]), "\n", " ")
			if i < len(widths) {
				widths[i] = max(widths[i], columns(row[i]))
			}
		}
	}
	for 2*len(widths)-2+sum(widths) > lineWidth {
		i := widest(widths, whole)
		if widths[i] <= leastColumn {
			break
		}
		widths[i]--
	}
	var out strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, width := range widths {
			cell := cut(row[i], width)
			line.WriteString(cell + strings.Repeat(" ", width-columns(cell)+2))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		for _, below := range row[len(widths):] {
			out.WriteString("  " + below + "\n")
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// leastColumn is what a column is not shortened below.
const leastColumn = 6

func sum(ns []int) int {
	total := 0
	for _, n := range ns {
		total += n
	}
	return total
}

// widest is the number of the widest column but one.
func widest(ns []int, but int) int {
	at := -1
	for i, n := range ns {
		if i != but && (at < 0 || n > ns[at]) {
			at = i
		}
	}
	return at
}

// ago says how long before now t was, in words.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	d := now.Sub(t)
	switch {
	case d < -time.Minute:
		return "in " + span(-d)
	case d < 5*time.Second:
		return "just now"
	}
	return span(d) + " ago"
}

// span is a length of time in one unit, rounded down.
func span(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := int64(d / u.unit); n > 0 {
			return plural(n, u.name)
		}
	}
	return "0 seconds"
}

// plural is "1 day", "2 days".
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sortedKeys is the keys of m in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// wrap breaks a line between words so that it fits in [lineWidth].
func wrap(s string) string {
	var out strings.Builder
	used := 0
	for i, word := range strings.Split(s, " ") {
		n := columns(word)
		switch {
		case i == 0:
		case used+1+n > lineWidth:
			out.WriteString("\n  ")
			used = 2
		default:
			out.WriteByte(' ')
			used++
		}
		out.WriteString(word)
		used += n
	}
	return out.String()
}
