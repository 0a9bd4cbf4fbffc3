// Package packaging holds the files by which a machine runs a gateway: the units of
// systemd and launchd, and the configurations of proxies in front of it.
//
// It owns their text, which packagers can use as it is. It promises that the units
// name a program and a config that exist only by default, in lines of their own, so
// that whoever installs one can put in others. Writing, starting and looking at
// services is left to internal/cli, and the proxies' files are for people.
package packaging

import _ "embed"

// SystemdSystem is the unit for the system's manager.
//
//go:embed systemd/agent-relay.service
var SystemdSystem string

// SystemdUser is the unit for a user's manager.
//
//go:embed systemd/user/agent-relay.service
var SystemdUser string

// Launchd is the property list of a launch agent.
//
//go:embed launchd/agent-relay.plist
var Launchd string
