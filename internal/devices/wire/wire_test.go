package wire

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDecode(t *testing.T) {
	for _, c := range []struct{ in, code, msg string }{
		{`{"type":"ping"}`, "", ""},
		{`{"type":"ping","id":7,"extra":{"a":[1]}}`, "", ""},
		{`{"type":"something_new"}`, "", ""},
		{`{"type":"hello","token":"t","proto":1,"device":"laptop","platform":"linux","tools":[{"name":"run","desc":"d","schema":{}}]}`, "", ""},
		{`{"type":"tool_result","ref":"a","ok":false,"output":"x","summary":null,"spilled":null}`, "", ""},
		{``, CodeMalformed, "not a JSON object"},
		{`[]`, CodeMalformed, "must not be a JSON array"},
		{`{"type":"ping"} x`, CodeMalformed, "not a JSON object"},
		{"{\"type\":\"\xff\"}", CodeMalformed, "not UTF-8"},
		{`{}`, CodeMalformed, "no type"},
		{`{"type":"hello","token":"t"}`, CodeMalformed, "hello needs device"},
		{`{"type":"hello","token":5,"device":"a"}`, CodeMalformed, "token must not be a JSON number"},
		{`{"type":"pair","code":"x","device":"Laptop"}`, CodeMalformed, "device must match"},
		{`{"type":"tool_result","ref":"a"}`, CodeMalformed, "tool_result needs ok"},
		{`{"type":"hello","token":"t","device":"a","tools":[{"name":"a/b"}]}`, CodeMalformed, "tools[0]"},
		{`{"type":"hello","token":"t","device":"a","tools":[{"name":"b"},{"name":"b"}]}`, CodeMalformed, "tools[1]"},
		{`{"type":"ping","summary":"` + strings.Repeat("x", MaxFrame) + `"}`, CodeTooLarge, "1048576"},
	} {
		_, err := Decode([]byte(c.in))
		if c.code == "" {
			if err != nil {
				t.Errorf("%s: %v", c.in, err)
			}
			continue
		}
		var p *ProtocolError
		if !errors.As(err, &p) || p.Code != c.code || !strings.Contains(p.Msg, c.msg) {
			t.Errorf("%.80s: %v, want %s: %s", c.in, err, c.code, c.msg)
		}
	}
}

func TestAnAnswerNamesTheFrame(t *testing.T) {
	for in, want := range map[string]string{
		`{"type":"ping","id":7}`:            "7",
		`{"type":"ping","id":"a"}`:          "a",
		`{"type":"ping","ref":"r"}`:         "r",
		`{"type":"ping","id":{"odd":true}}`: "",
	} {
		f, err := Decode([]byte(in))
		if got := f.Answer(Pong).Ref; err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestCanonicalKeepsWhatTheCallerWrote(t *testing.T) {
	for in, want := range map[string]string{
		``:     `{}`,
		`null`: `{}`,
		` { "b" : 12345678901234567890.10, "a": "<&>é" } `: `{"b":12345678901234567890.10,"a":"<&>é"}`,
	} {
		got, err := Canonical(json.RawMessage(in))
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
		raw, err := Encode(Frame{Type: Call, Ref: "r", Tool: "t", Args: got})
		if err != nil || !strings.Contains(string(raw), `"args":`+want) {
			t.Errorf("%s travels as %s, %v", want, raw, err)
		}
	}
	for _, in := range []string{`[]`, `"x"`, `{"a":`, `5`} {
		if _, err := Canonical(json.RawMessage(in)); err == nil {
			t.Errorf("%s was taken", in)
		}
	}
}

func TestCheckNamesPlaceAndRuleNotTheValue(t *testing.T) {
	const schema = `{"type":"object","properties":{"cmd":{"type":"string","minLength":2},"n":{"type":"integer","minimum":10},
		"kind":{"enum":["a","b"]},"list":{"type":"array","items":{"type":"object","properties":{"x":{"type":"boolean"}}}},"d":{"$ref":"#/$defs/D"}},
		"required":["cmd"],"additionalProperties":false,"$defs":{"D":{"type":"number","maximum":3.5}}}`
	s, err := Compile(json.RawMessage(schema))
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		`{"cmd":"ls"}`:                        "",
		`{"cmd":"ls","n":1e1}`:                "",
		`{}`:                                  "args lacks [cmd]",
		`{"cmd":5551234}`:                     "args.cmd must be of type string",
		`{"cmd":"5551234, want x","n":9}`:     "args.n must be at least 10",
		`{"cmd":"z"}`:                         "args.cmd breaks the schema's rule minLength",
		`{"cmd":"ls","kind":"5551234"}`:       "args.kind must be one of the values that the schema lists",
		`{"cmd":"ls","list":[{"x":5551234}]}`: "args.list[].x must be of type boolean",
		`{"cmd":"ls","d":5551234}`:            "args.d must be at most 3.5",
		`{"cmd":"ls","other":5551234}`:        "args has unknown properties: ?other?",
		`[]`:                                  "args must be an object",
	} {
		got := ""
		if err := s.Check(json.RawMessage(in)); err != nil {
			got = err.Error()
		}
		if got != want || strings.Contains(got, "5551234") {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func TestCompileRefusesWhatCannotBeCheckedInBoundedTime(t *testing.T) {
	doubling := `{"$defs":{"a0":{"type":"string"}`
	for i := range 30 {
		doubling += `,"a` + string(rune('1'+i)) + `":{"allOf":[{"$ref":"#/$defs/a` + string(rune('0'+i)) + `"},{"$ref":"#/$defs/a` + string(rune('0'+i)) + `"}]}`
	}
	doubling += `},"$ref":"#/$defs/a` + string(rune('0'+30)) + `"}`
	for _, in := range []string{
		`{"$ref":"#"}`, `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`, doubling,
		`{"$ref":"https://example.com/x"}`, `{"type":5}`, `{"pattern":"("}`, `5`, `{"$schema":"http://json-schema.org/draft-04/schema#","type":"nonsense"}`,
	} {
		if _, err := Compile(json.RawMessage(in)); err == nil {
			t.Errorf("%.60s was taken", in)
		}
	}
	for _, in := range []string{``, `null`, `{}`, `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/definitions/a"}}}`} {
		s, err := Compile(json.RawMessage(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if err := s.Check(json.RawMessage(`{"x":"y"}`)); err != nil {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestRetry(t *testing.T) {
	if d, ok := ParseRetry(RetryReason(1500e6)); !ok || d != 1500e6 {
		t.Error(d, ok)
	}
	for _, in := range []string{"", "going away", "retry_after_ms=-1", "retry_after_ms=1e3"} {
		if d, ok := ParseRetry(in); ok {
			t.Errorf("%q is %v", in, d)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"hello","token":"t","proto":1,"device":"a","tools":[{"name":"run","schema":{"type":"object"}}]}`))
	f.Add([]byte(`{"type":"tool_result","ref":"1","ok":true,"output":"x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		frame, err := Decode(raw)
		if err != nil {
			var p *ProtocolError
			if !errors.As(err, &p) || !utf8.ValidString(p.Msg) {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		again, err := Encode(frame)
		if err != nil {
			return // escapes can make it longer than a frame
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("%s became %s: %v", raw, again, err)
		}
	})
}

func FuzzSchema(f *testing.F) {
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"enum":[1]}}}`), []byte(`{"a":1}`))
	f.Fuzz(func(t *testing.T, schema, args []byte) {
		s, err := Compile(schema)
		if err != nil {
			return
		}
		if err := s.Check(args); err != nil && !utf8.ValidString(err.Error()) {
			t.Fatal(err)
		}
	})
}
