package mailbox

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"agentrelay/internal/callerid"
	"agentrelay/internal/fault"
)

// The limits of arguments. Characters are Unicode code points.
const (
	MaxTextLength    = 8192
	MaxDisplayName   = 100
	SummaryLength    = 200
	MaxHops          = 8
	MaxPeersPerOwner = 512 // for ever: a stopped peer counts
	DefaultLimit     = 50
	MaxLimit         = 200
	MaxWaitMs        = 20000
)

// invalid refuses the argument of that name, with the rule it broke.
func invalid(argument, rule string) error {
	return fault.InvalidArguments.New(argument + " " + rule)
}

func checkID(argument, id string) error {
	if !callerid.Valid(id) {
		return invalid(argument, callerid.Rule)
	}
	return nil
}

// lowerUUID returns the stored form of a UUID in its usual 36-character form.
func lowerUUID(argument, id string) (string, error) {
	if !isUUID(id) {
		return "", invalid(argument, "must be a UUID such as 123e4567-e89b-42d3-a456-426614174000")
	}
	return strings.ToLower(id), nil
}

func isUUID(id string) bool {
	return len(id) == 36 && uuid.Validate(id) == nil
}

// characters counts the code points of s, or refuses bytes that are none.
func characters(argument, s string, max int) (int, error) {
	if !utf8.ValidString(s) {
		return 0, invalid(argument, "must be valid UTF-8")
	}
	n := utf8.RuneCountInString(s)
	if n < 1 || n > max {
		return 0, invalid(argument, fmt.Sprintf("must have 1 to %d characters, it has %d", max, n))
	}
	return n, nil
}

// checkDisplayName also refuses control characters and line ends: the name is
// shown on one line, in terminals too.
func checkDisplayName(name string) error {
	if _, err := characters("displayName", name, MaxDisplayName); err != nil {
		return err
	}
	if strings.ContainsFunc(name, func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) }) {
		return invalid("displayName", "must not contain control characters or line ends")
	}
	if strings.TrimSpace(name) == "" {
		return invalid("displayName", "must not be blank")
	}
	return nil
}

func checkLimit(limit *int) (int, error) {
	if limit == nil {
		return DefaultLimit, nil
	}
	if *limit < 1 || *limit > MaxLimit {
		return 0, invalid("limit", fmt.Sprintf("must be 1 to %d", MaxLimit))
	}
	return *limit, nil
}

func checkWait(ms *int) (int, error) {
	if ms == nil {
		return 0, nil
	}
	if *ms < 0 || *ms > MaxWaitMs {
		return 0, invalid("waitMs", fmt.Sprintf("must be 0 to %d", MaxWaitMs))
	}
	return *ms, nil
}

// resolveHost returns the canonical id of a host.
func (s *Service) resolveHost(id *string) (string, error) {
	if id == nil || slices.Contains([]string{s.localHost, "local", "mac"}, *id) {
		return s.localHost, nil
	}
	others := s.agents.HostIDs()
	if slices.Contains(others, *id) {
		return *id, nil
	}
	return "", fault.UnknownHost.Newf("hostId names no host of this gateway. It has: %s.", strings.Join(append([]string{s.localHost}, others...), ", "))
}

// firstError returns the first error of a list of checks.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
