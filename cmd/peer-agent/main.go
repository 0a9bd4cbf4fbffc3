// Command peer-agent is Agent Relay on the machines where agents and files are:
// the worker of a host, the supervisor of its commands, and the agents' own
// command line.
package main

import (
	"os"

	"agentrelay/internal/cli/peeragent"
)

func main() { os.Exit(peeragent.Main()) }
