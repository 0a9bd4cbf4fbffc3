package gateway

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"
)

func TestAgo(t *testing.T) {
	now := time.Date(2026, 11, 5, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		before time.Duration
		want   string
	}{
		{0, "just now"},
		{4 * time.Second, "just now"},
		{59 * time.Second, "59 seconds ago"},
		{time.Minute, "1 minute ago"},
		{3*time.Minute + 40*time.Second, "3 minutes ago"},
		{23 * time.Hour, "23 hours ago"},
		{49 * time.Hour, "2 days ago"},
		{400 * 24 * time.Hour, "400 days ago"},
		{-2 * time.Second, "just now"}, // two clocks that differ a little
		{-90 * time.Minute, "in 1 hour"},
	} {
		if got := ago(now, now.Add(-tt.before)); got != tt.want {
			t.Errorf("%v before: got %q, want %q", tt.before, got, tt.want)
		}
	}
	if got := ago(now, time.Time{}); got != "never" {
		t.Errorf("the zero time: got %q", got)
	}
}

func TestCleanKeepsTheTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"Claude":                     "Claude",
		"\x1b[2Jboo\a":               "?[2Jboo?",
		"a\u202egnp.exe":             "a?gnp.exe", // right-to-left override
		"zero\u200bwidth":            "zero?width",
		"日本語 ✓":                      "日本語 ✓",
		"bad\xffutf8":                "bad?utf8",
		"two\nlines":                 "two\nlines",
		"\u009b31mC1 control\u0085x": "?31mC1 control?x",
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

// A table lines up, fits, and never shortens the column that is copied, whatever
// clients call themselves.
func TestTableFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "columns")
		whole := rapid.IntRange(0, n-1).Draw(t, "whole")
		headings := make([]string, n)
		for i := range headings {
			headings[i] = strings.Repeat("H", i+1)
		}
		var rows, given [][]string
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			row := make([]string, n)
			for i := range row {
				row[i] = rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-z日\x1b]{0,120}`)).Draw(t, "cell")
			}
			row[whole] = rapid.StringMatching(`[a-z0-9-]{1,50}`).Draw(t, "id")
			rows, given = append(rows, row), append(given, append([]string{}, row...))
		}
		var out bytes.Buffer
		if err := table(&out, whole, headings, rows); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(lines) != len(rows)+1 {
			t.Fatalf("%d lines for %d rows:\n%s", len(lines), len(rows), out.String())
		}
		for i, line := range lines {
			if columns(line) > lineWidth {
				t.Fatalf("line %d has %d columns:\n%s", i, columns(line), line)
			}
			if strings.ContainsFunc(line, unicode.IsControl) {
				t.Fatalf("control characters in %q", line)
			}
			if i > 0 && !strings.Contains(line, given[i-1][whole]) {
				t.Fatalf("%q was shortened in %q", given[i-1][whole], line)
			}
		}
	})
}

func TestParseBefore(t *testing.T) {
	now := time.Date(2026, 11, 5, 12, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Time{
		"30d":                       now.AddDate(0, 0, -30),
		"720h":                      now.Add(-720 * time.Hour),
		"90m":                       now.Add(-90 * time.Minute),
		"0s":                        now,
		"2026-01-01T00:00:00Z":      time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		"2026-01-01T00:00:00+02:00": time.Date(2025, 12, 31, 22, 0, 0, 0, time.UTC),
	} {
		if got, err := parseBefore(in, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: got %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "yesterday", "-3h", "30", "d", "9999999d", "2026-13-01T00:00:00Z", "2027-01-01T00:00:00Z"} {
		if got, err := parseBefore(in, now); err == nil {
			t.Errorf("%q was read as %v", in, got)
		}
	}
}
