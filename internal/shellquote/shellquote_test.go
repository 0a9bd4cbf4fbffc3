package shellquote_test

import (
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentrelay/internal/shellquote"
)

func TestWord(t *testing.T) {
	for in, want := range map[string]string{
		"/etc/relay.json":     "/etc/relay.json",
		"/My Files/relay":     "'/My Files/relay'",
		"it's":                `'it'\''s'`,
		"a$(rm -rf x)b":       "'a$(rm -rf x)b'",
		"":                    "''",
		"/home/jürgen/c.json": "/home/jürgen/c.json",
	} {
		if got := shellquote.Word(in); got != want {
			t.Errorf("Word(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestAShellReadsItBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.String(), 1, 20).Draw(t, "words")
		var script strings.Builder
		var want strings.Builder
		for _, w := range words {
			w = strings.ReplaceAll(w, "\x00", "")
			script.WriteString("printf '%s|' " + shellquote.Word(w) + "\n")
			want.WriteString(w + "|")
		}
		got, err := exec.Command("/bin/sh", "-c", script.String()).Output()
		if err != nil || string(got) != want.String() {
			t.Fatalf("the shell read %q, %v; want %q", got, err, want.String())
		}
	})
}
