//go:build race

package commands_test

// commandsPerLane is small where everything is slow.
const commandsPerLane = 25
