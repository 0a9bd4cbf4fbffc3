package paseotest

import (
	"fmt"
	"strings"
)

// level is which of the three behaviours a version has.
type level int

const (
	old    level = iota // 0.1.65
	middle              // 0.5
	newest              // 0.10
)

func levelOf(version string) level {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	switch {
	case major == 0 && minor < 2:
		return old
	case major == 0 && minor < 8:
		return middle
	}
	return newest
}

func (l level) features() map[string]any {
	out := map[string]any{"providersSnapshot": true}
	if l >= middle {
		for _, name := range []string{"agentProfiles", "selectiveAgentTimeline", "canonicalSubmittedPrompts", "daemonStatusRpc", "workspaceMultiplicity"} {
			out[name] = true
		}
	}
	if l >= newest {
		for _, name := range []string{"agentRequestReceipts", "workspaceRequestReceipts", "creationLifecycle"} {
			out[name] = true
		}
	}
	return out
}

// showsCustom reports whether a client of that appVersion sees providers that are
// not built in: it must be a version, and at least 0.1.45.
func showsCustom(appVersion string) bool {
	appVersion, _, _ = strings.Cut(appVersion, "-")
	var major, minor, patch int
	n, _ := fmt.Sscanf(appVersion, "%d.%d.%d", &major, &minor, &patch)
	if n != 3 {
		return false
	}
	return major > 0 || minor > 1 || minor == 1 && patch >= 45
}

func (l level) unknownRequest(version string) string {
	if l == old {
		return "Unknown request schema"
	}
	return "Unknown request, try upgrading the daemon (currently v" + version + ")"
}
