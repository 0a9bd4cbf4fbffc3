package agents

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"agentrelay/internal/fault"
)

// fingerprint is stored with a requestId and tells a repeat from another call. It
// is taken over checked arguments with their defaults; owner and host are part of
// the key.
func fingerprint(tool string, arguments map[string]any) ([]byte, error) {
	raw, err := json.Marshal([]any{tool, arguments}) // objects with sorted keys
	if err != nil {
		return nil, fmt.Errorf("fingerprinting arguments: %w", err)
	}
	sum := sha256.Sum256(raw)
	return sum[:], nil
}

// newUUID makes an id that nobody can guess.
func newUUID(random io.Reader) (string, error) {
	id, err := uuid.NewRandomFromReader(random)
	if err != nil {
		return "", fmt.Errorf("making an id: %w", err)
	}
	return id.String(), nil
}

// lowerUUID is the stored form of an id that is a UUID; other ids are themselves.
func lowerUUID(id string) string {
	if parsed, err := uuid.Parse(id); err == nil && len(id) == 36 {
		return parsed.String()
	}
	return id
}

func checkUUID(name, id string) (string, error) {
	parsed, err := uuid.Parse(id)
	if err != nil || len(id) != 36 {
		return "", fault.InvalidArguments.New(name + " must be a UUID")
	}
	return parsed.String(), nil
}

func checkText(name, s string, least, most int) error {
	if n := utf8.RuneCountInString(s); n < least || n > most || !utf8.ValidString(s) {
		return fault.InvalidArguments.Newf("%s must have %d to %d characters", name, least, most)
	}
	return nil
}

// checkPrompt refuses a text that the daemon would trim to nothing.
func checkPrompt(name, s string) error {
	if strings.TrimSpace(s) == "" {
		return fault.InvalidArguments.New(name + " must not be blank")
	}
	return checkText(name, s, 1, MaxPrompt)
}

// reserved are labels, without case, that only the gateway sets.
var reserved = regexp.MustCompile(`(?i)^(agentrelay.*|dotrequestid|paseo[.].*)$`)

// checkLabels reads labels, which callers can't use to pass for the gateway.
func checkLabels(in map[string]any) (map[string]string, error) {
	if len(in) > MaxLabels {
		return nil, fault.InvalidArguments.Newf("labels must have at most %d members", MaxLabels)
	}
	out := map[string]string{}
	for name, v := range in {
		value, ok := v.(string)
		switch {
		case !ok || checkText("labels", name, 1, MaxLabel) != nil || checkText("labels", value, 0, MaxLabel) != nil:
			return nil, fault.InvalidArguments.Newf("labels must have names and string values of at most %d characters", MaxLabel)
		case reserved.MatchString(name):
			return nil, ReservedLabel.New("A label is reserved: those that begin with agentRelay or paseo., and dotRequestId.")
		}
		out[name] = value
	}
	return out, nil
}

// selfApproval is a mode or feature by which an agent approves its own actions,
// in small letters alone.
var selfApproval = regexp.MustCompile(`auto(accept|approv|allow|run|edit)|acceptedits|bypass|yolo|dangerous|fullaccess|skippermission|(accept|approve|allow)all|neverask|noapproval|unattended`)

func lettersOf(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.ToLower(s))
}

// checkApproval refuses settings that let an agent approve its own actions.
func (s *Service) checkApproval(mode string, features map[string]any) error {
	if s.allowAutoAccept {
		return nil
	}
	if selfApproval.MatchString(lettersOf(mode)) {
		return AutoAcceptRefused.New("The mode lets the agent act without asking, which the owner has not allowed.")
	}
	if switchedOn(features) {
		return AutoAcceptRefused.New("A feature lets the agent act without asking, which the owner has not allowed.")
	}
	return nil
}

// switchedOn looks for self-approval that is on, at any depth: as a name with a
// value that is not off, or as a value.
func switchedOn(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			off := member == nil || member == false || member == "" || member == "off" || member == "false" || member == float64(0)
			if !off && selfApproval.MatchString(lettersOf(name)) || switchedOn(member) {
				return true
			}
		}
	case []any:
		for _, item := range v {
			if switchedOn(item) {
				return true
			}
		}
	case string:
		return selfApproval.MatchString(lettersOf(v))
	}
	return false
}
