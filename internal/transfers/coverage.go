package transfers

import (
	"cmp"
	"slices"
)

// coverage is which bytes of a file were sent: half-open intervals, in order,
// apart from each other.
type coverage [][2]int64

// maxIntervals bounds a coverage. Beyond it the shortest interval is forgotten,
// so that less is claimed than was sent.
const maxIntervals = 1024

// with is the coverage after [from, to) was sent too.
func (c coverage) with(from, to int64) coverage {
	if from >= to {
		return c
	}
	out := slices.Concat(c, coverage{{from, to}})
	slices.SortFunc(out, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	merged := out[:1]
	for _, next := range out[1:] {
		if last := &merged[len(merged)-1]; next[0] <= last[1] {
			last[1] = max(last[1], next[1])
		} else {
			merged = append(merged, next)
		}
	}
	if len(merged) > maxIntervals {
		shortest := slices.MinFunc(merged, func(a, b [2]int64) int { return cmp.Compare(a[1]-a[0], b[1]-b[0]) })
		merged = slices.DeleteFunc(merged, func(i [2]int64) bool { return i == shortest })
	}
	return merged
}

// covers reports whether all of size bytes were sent. An empty file is, by any
// download.
func (c coverage) covers(size int64) bool {
	return size == 0 || len(c) == 1 && c[0][0] == 0 && c[0][1] >= size
}
