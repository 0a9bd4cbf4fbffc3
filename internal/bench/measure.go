package main

import (
	"slices"
	"time"
)

// side is one of the things that are compared. It measures itself once, for one
// slice of time, and returns its figure.
type side func() (float64, error)

// samples are the figures of each side, by round.
type samples [][]float64

// inTurns measures the sides one after the other, round after round, each round
// in the opposite order of the one before: a machine that is busier for a while
// is unfair to none of them.
func inTurns(rounds int, sides ...side) (samples, error) {
	all := make(samples, len(sides))
	order := make([]int, len(sides))
	for i := range order {
		order[i] = i
	}
	for range rounds {
		for _, i := range order {
			v, err := sides[i]()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], v)
		}
		slices.Reverse(order)
	}
	return all, nil
}

// median is the middle figure of a side.
func (s samples) median(side int) float64 { return percentile(s[side], 50) }

// ratio is the middle of the rounds' own ratios of side a to side b.
func (s samples) ratio(a, b int) float64 {
	ratios := make([]float64, len(s[a]))
	for i := range ratios {
		ratios[i] = s[a][i] / s[b][i]
	}
	return percentile(ratios, 50)
}

// percentile is the smallest value that at least p percent of the values do not
// exceed.
func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// seconds turns times into figures.
func seconds(times []time.Duration) []float64 {
	out := make([]float64, len(times))
	for i, t := range times {
		out[i] = t.Seconds()
	}
	return out
}
