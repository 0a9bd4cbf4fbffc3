//go:build !race

package files_test

// slow is how much longer things may take under the race detector.
const slow = 1
