package paseo

import (
	"encoding/json"
	"strconv"
	"strings"
)

// ServerInfo is how a daemon introduces itself on each connection.
type ServerInfo struct {
	// ServerID names the daemon's installation; it survives restarts.
	ServerID string
	Hostname string
	// Version is the daemon's, "" if it told none.
	Version string
	// Features are the daemon's flags.
	Features map[string]bool
	// Permissions are what this connection may do; nil when the daemon doesn't say.
	Permissions []string
}

// Has reports whether the daemon said that it has the feature.
func (i ServerInfo) Has(feature string) bool { return i.Features[feature] }

// RequestReceipts: create keys and message ids are journalled on disk, and run
// once. Without it keys are ignored by the daemon, so they must not be sent.
func (i ServerInfo) RequestReceipts() bool { return i.Has("agentRequestReceipts") }

// WorkspaceReceipts is RequestReceipts for workspace creation.
func (i ServerInfo) WorkspaceReceipts() bool { return i.Has("workspaceRequestReceipts") }

// SelectiveTimeline: the daemon streams only the agents of [Client.Watch].
func (i ServerInfo) SelectiveTimeline() bool { return i.Has("selectiveAgentTimeline") }

// StatusRPC: [Client.DaemonStatus] is answered, so restarts are noticed.
func (i ServerInfo) StatusRPC() bool { return i.Has("daemonStatusRpc") }

// Profiles: [Client.ListProfiles] is answered.
func (i ServerInfo) Profiles() bool { return i.Has("agentProfiles") }

// Workspaces: workspaces are created by themselves and agents run in them.
func (i ServerInfo) Workspaces() bool { return i.Has("workspaceMultiplicity") }

// TurnIDs: events, timeline entries and running snapshots carry turn ids. There
// is no flag for it; user messages are known to be canonical only where turns
// have ids, and 0.2.6 is the first version that has them.
func (i ServerInfo) TurnIDs() bool {
	return i.Has("canonicalSubmittedPrompts") || atLeast(i.Version, 0, 2, 6)
}

// atLeast compares the numbers of a version; what is no version is too old.
func atLeast(version string, want ...int) bool {
	version, _, _ = strings.Cut(version, "-")
	parts := strings.Split(version, ".")
	if len(parts) < len(want) {
		return false
	}
	for n, w := range want {
		have, err := strconv.Atoi(parts[n])
		if err != nil || have < w {
			return false
		}
		if have > w {
			return true
		}
	}
	return true
}

// decodeInfo reads a server_info payload; ok is false without a serverId.
func decodeInfo(payload []byte) (info ServerInfo, ok bool) {
	var wire struct {
		ServerID    text                       `json:"serverId"`
		Hostname    text                       `json:"hostname"`
		Version     text                       `json:"version"`
		Features    lenient[map[string]any]    `json:"features"`
		Permissions lenient[[]json.RawMessage] `json:"permissions"`
	}
	if json.Unmarshal(payload, &wire) != nil {
		return ServerInfo{}, false
	}
	info = ServerInfo{
		ServerID: strings.TrimSpace(string(wire.ServerID)),
		Hostname: strings.TrimSpace(string(wire.Hostname)),
		Version:  strings.TrimSpace(string(wire.Version)),
		Features: map[string]bool{},
	}
	for name, value := range wire.Features.v {
		on, isBool := value.(bool)
		// A flag that has grown into an object of details is still on.
		_, isObject := value.(map[string]any)
		info.Features[name] = isBool && on || isObject
	}
	for _, raw := range wire.Permissions.v {
		var name string
		if json.Unmarshal(raw, &name) == nil {
			info.Permissions = append(info.Permissions, name)
		}
	}
	return info, info.ServerID != ""
}
