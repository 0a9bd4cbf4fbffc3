//go:build race

package backup

const raced = true
