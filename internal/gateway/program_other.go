//go:build !linux

package gateway

// releaseProgram does nothing: macOS counts the pages of programs apart.
func releaseProgram() error { return nil }
