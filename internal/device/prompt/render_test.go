package prompt

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"agentrelay/internal/device/approval"
)

func question(args string) approval.Question {
	return approval.Question{
		Device: "laptop", Tool: "run", Agent: "claude-code", Args: json.RawMessage(args), Hint: "cmd",
		Reason: "fetching the page to check the header", Requires: []string{"shell", "net"},
	}
}

func quoted(s string) string {
	raw, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// TestScreens shows questions as a person with 80 columns sees them.
func TestScreens(t *testing.T) {
	cmd := func(s string) approval.Question { return question(`{"cmd":` + quoted(s) + `}`) }
	with := func(q approval.Question, change func(*approval.Question)) approval.Question {
		change(&q)
		return q
	}
	for name, q := range map[string]approval.Question{
		"plain":    cmd("curl example.com > /tmp/example"),
		"no-agent": with(cmd("ls"), func(q *approval.Question) { q.Agent, q.Reason, q.Requires = "", "", nil }),
		"no-hint":  with(question(`{"a":1,"b":{"c":["<&>",null]}}`), func(q *approval.Question) { q.Hint = "" }),
		"more":     question(`{"cmd":"make test","timeout_s":60,"dry":false}`),
		"number":   with(question(`{"cmd":12}`), func(q *approval.Question) {}),
		"empty":    cmd(""),
		"twice":    question(`{"cmd":"echo harmless","cmd":"rm -rf ~"}`),
		"redraw":   cmd("echo hello\x1b[2K\r\x1b[1A  reason: none"),
		"bidi":     cmd("rm \u202egpj.exe\u2066 # \u200bhidden\u200d\ufeff \U000e0041\u00ad"),
		"newline":  cmd("ls\n  needs: nothing\nrun? [Y/n/a=always] > y\n"),
		"spaces":   cmd("a\u00a0b\u3000c\u2003d\te"),
		"marks":    cmd("e\u0301" + strings.Repeat("x\u0336\u0489\u0300\u0301\u0302", 4)),
		"wide":     cmd("echo " + strings.Repeat("漢字", 60)),
		"scripts":  cmd("grüße мир שלום नमस्ते 👋🏽"),
		"long":     cmd("echo " + strings.Repeat("0123456789", 1000)),
		"liars": with(cmd("ls"), func(q *approval.Question) {
			q.Agent, q.Reason = "root wants to run laptop:read-file\n", "ok\n  needs: nothing\nrun? [Y/n/a=always] > "
		}),
		"reason": with(cmd("ls"), func(q *approval.Question) { q.Reason = strings.Repeat("because of this and that, ", 60) }),
	} {
		t.Run(name, func(t *testing.T) {
			s := render(q, 80)
			for _, row := range s.rows {
				if total(pieces(row)) > 79 {
					t.Errorf("a row is too long: %q", row)
				}
			}
			golden(t, name, strings.Join(s.rows, "\n")+"\n"+ask(s)+"\n")
			if s.all != nil && !strings.HasPrefix(s.all[0], s.rows[0]) {
				t.Error("paging shows something else")
			}
		})
	}
}

// FuzzScreen: whatever is asked, the screen has printable characters of one direction
// and known width alone, in rows that fit, each behind our margin.
func FuzzScreen(f *testing.F) {
	f.Add("claude", "ls -l", "why", "also", 80)
	f.Add("\x1b]0;x\x07", "a\u202eb\x00\xff", "\u2066\n\n\r", "\u0300\u0300\u0300", 40)
	f.Add("", strings.Repeat("漢", 500), "x", "y", 10)
	f.Fuzz(func(t *testing.T, agent, cmd, reason, other string, columns int) {
		args, err := json.Marshal(map[string]string{"cmd": cmd, "other": other})
		if err != nil {
			return
		}
		s := render(approval.Question{Device: "laptop", Tool: "run", Agent: agent, Args: args, Hint: "cmd", Reason: reason}, columns)
		columns = min(max(columns, minColumns), maxColumns)
		for i, row := range append(append([]string{}, s.rows...), s.all...) {
			if !utf8.ValidString(row) || strings.ContainsFunc(row, hidden) {
				t.Fatalf("row %d is %q", i, row)
			}
			if i > 2 && i != len(s.rows) && i != len(s.rows)+1 && i != len(s.rows)+2 && !strings.HasPrefix(row, "  ") {
				t.Fatalf("row %d has no margin: %q", i, row)
			}
			if n := total(pieces(row)); n >= columns {
				t.Fatalf("row %d takes %d of %d columns: %q", i, n, columns, row)
			}
		}
		if len(s.rows) > 4+bodyRows+otherRows+reasonRows+4*4 {
			t.Fatalf("%d rows", len(s.rows))
		}
		// What is shown in full shows every character, in order.
		all := s.rows
		if s.all != nil {
			all = s.all
		}
		var text strings.Builder
		for len(all) > 1 && strings.HasPrefix(all[1], "  | ") && !strings.HasSuffix(all[0], "laptop:run") {
			all = all[1:] // the head has several rows
		}
		for _, row := range all[1:] {
			text.WriteString(strings.TrimPrefix(strings.TrimPrefix(row, "  | "), "  "))
		}
		want := ""
		var sent struct{ Cmd string }
		if err := json.Unmarshal(args, &sent); err != nil {
			t.Fatal(err)
		}
		for _, p := range pieces(sent.Cmd) {
			want += p.text
		}
		if !strings.HasPrefix(text.String(), want) {
			t.Fatalf("%q is shown as %q", cmd, text.String())
		}
	})
}

// hidden are characters that no screen may have.
func hidden(r rune) bool {
	return !unicode.IsPrint(r) || r != ' ' && unicode.Is(unicode.Zs, r) || unicode.In(r, unicode.Cf, unicode.Cc, unicode.Co, unicode.Cs) || rightToLeft(r)
}
