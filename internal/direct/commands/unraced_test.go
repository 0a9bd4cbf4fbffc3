//go:build !race

package commands_test

const commandsPerLane = 125
