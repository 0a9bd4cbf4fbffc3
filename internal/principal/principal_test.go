package principal_test

import (
	"testing"

	"agentrelay/internal/principal"
)

func TestParseSet(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"mailbox", "mailbox"},
		{"commands, mailbox mailbox", "mailbox,commands"},
		{"all", "mailbox,files_read,files_write,commands,agents,devices"},
	} {
		got, err := principal.ParseSet(c.in)
		if err != nil || got.String() != c.want {
			t.Errorf("ParseSet(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
	if _, err := principal.ParseSet("mailbox,root"); err == nil {
		t.Error("an unknown permission was accepted")
	}
}

func TestSetIsImmutable(t *testing.T) {
	s := principal.Full()
	less := s.Without(principal.Commands)
	if !s.Has(principal.Commands) || less.Has(principal.Commands) || !less.With(principal.Commands).Has(principal.Commands) {
		t.Fatalf("s=%s less=%s", s, less)
	}
}

func TestOwnerOf(t *testing.T) {
	if got := principal.OwnerOf(true, "c1"); got != "local-owner:shared" {
		t.Error(got)
	}
	if got := principal.OwnerOf(false, "c1"); got != "local-owner:c1" {
		t.Error(got)
	}
}
