// Package principal says who is asking and what the owner lets them do.
//
// It owns the names of permissions and the two forms of owner string. It
// promises that a [Principal] is built only from a verified bearer token (by
// internal/oauth) or by the owner's own command line; headers and arguments
// never contribute. It leaves enforcement to the edge that knows which
// permission a call needs.
package principal

import (
	"fmt"
	"slices"
	"strings"
)

// Permission is one thing the owner may allow a client at consent.
type Permission string

// The permissions, in the order the consent page shows them.
const (
	Mailbox    Permission = "mailbox"
	FilesRead  Permission = "files_read"
	FilesWrite Permission = "files_write"
	Commands   Permission = "commands"
	Agents     Permission = "agents"
	Devices    Permission = "devices"
)

// All returns every permission in display order.
func All() []Permission {
	return []Permission{Mailbox, FilesRead, FilesWrite, Commands, Agents, Devices}
}

// Set is a set of permissions in display order without repeats. The zero value
// allows nothing.
type Set []Permission

// Full allows everything.
func Full() Set { return Set(All()) }

// ParseSet reads a comma- or space-separated list. The word "all" stands for
// every permission. An unknown name is an error that lists the known ones.
func ParseSet(s string) (Set, error) {
	out := Set{}
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		if f == "all" {
			return Full(), nil
		}
		if !slices.Contains(All(), Permission(f)) {
			return nil, fmt.Errorf("unknown permission %q: the permissions are %s", f, Full())
		}
		out = out.With(Permission(f))
	}
	return out, nil
}

// Has reports whether p is in the set.
func (s Set) Has(p Permission) bool { return slices.Contains(s, p) }

// With returns the set with ps added.
func (s Set) With(ps ...Permission) Set {
	return s.keep(func(p Permission) bool { return s.Has(p) || slices.Contains(ps, p) })
}

// Without returns the set with ps removed.
func (s Set) Without(ps ...Permission) Set {
	return s.keep(func(p Permission) bool { return s.Has(p) && !slices.Contains(ps, p) })
}

func (s Set) keep(ok func(Permission) bool) Set {
	out := Set{}
	for _, p := range All() {
		if ok(p) {
			out = append(out, p)
		}
	}
	return out
}

// String is the comma-separated list that [ParseSet] reads.
func (s Set) String() string {
	names := make([]string, len(s))
	for i, p := range s {
		names[i] = string(p)
	}
	return strings.Join(names, ",")
}

// SharedOwner is the owner of everything when the config says sharedOwner.
const SharedOwner = "local-owner:shared"

// OwnerOf is the owner string of a client: [SharedOwner] when shared, else one
// owner for each client id.
func OwnerOf(shared bool, clientID string) string {
	if shared {
		return SharedOwner
	}
	return "local-owner:" + clientID
}

// Principal is one verified caller. It is a value; copies are independent
// except for the Permissions slice, which must not be changed.
type Principal struct {
	// Owner scopes all state: [OwnerOf] of the client.
	Owner string
	// ClientID is the OAuth client that made the call, or "owner" for the
	// owner's command line.
	ClientID string
	// ClientName is what the client calls itself; never trusted, only shown.
	ClientName string
	// Permissions is what the owner allowed this client, as of this request.
	Permissions Set
}

// OwnerClientID is the ClientID of the owner's own commands.
const OwnerClientID = "owner"

// Owner returns the principal of the owner's own command line, for the domain
// of the given owner string.
func Owner(owner string) Principal {
	return Principal{Owner: owner, ClientID: OwnerClientID, ClientName: "owner", Permissions: Full()}
}
