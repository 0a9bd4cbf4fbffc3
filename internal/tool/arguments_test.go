package tool

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func testSchema() *Schema {
	nullable := Str("A hash, or null.").Matching(regexp.MustCompile("^[0-9a-f]{4}$"))
	nullable.OrNull()
	ids := List("Ids.", Str("An id.").Length(1, 3))
	ids.MinItems, ids.MaxItems = 1, 2
	return Arguments(
		Req("name", Str("A name.").Length(2, 4)),
		Req("hash", nullable),
		Opt("count", Integer("A count.").Between(0, 10)),
		Opt("on", Boolean("A switch.")),
		Opt("ids", ids),
		Opt("at", Object("A place.", Req("path", Str("A path.")), Opt("line", Integer("A line.")))),
	)
}

func TestReadArguments(t *testing.T) {
	for _, c := range []struct{ in, out, problem string }{
		{`{"name":"ab","hash":null}`, `{"name":"ab","hash":null}`, ""},
		{`{"name":"ab","hash":"00ff","count":null,"on":null,"ids":null}`, `{"hash":"00ff","name":"ab"}`, ""},
		{`{"name":"éééé","hash":"00ff","count":5.0}`, `{"count":5,"hash":"00ff","name":"éééé"}`, ""},
		{`{"name":"ab","hash":null,"count":1e1}`, `{"count":10,"hash":null,"name":"ab"}`, ""},
		{`{"name":"ab","hash":null,"at":{"path":"x","line":2.0}}`, `{"at":{"line":2,"path":"x"},"hash":null,"name":"ab"}`, ""},
		{``, "", "name is required"},
		{`null`, "", "name is required"},
		{`[]`, "", "the arguments must be an object"},
		{`"x"`, "", "the arguments must be an object"},
		{`{"name":"a","hash":null}`, "", "name must have 2 to 4 characters, it has 1"},
		{`{"name":"ab"}`, "", "hash is required"},
		{`{"name":"ab","hash":5}`, "", "hash must be a string or null"},
		{`{"name":"ab","hash":"xyz"}`, "", "hash must match ^[0-9a-f]{4}$"},
		{`{"name":"ab","hash":null,"count":11}`, "", "count must be from 0 to 10"},
		{`{"name":"ab","hash":null,"count":1e400}`, "", "count must be a whole number"},
		{`{"name":"ab","hash":null,"count":1e99}`, "", "count must be a whole number"},
		{`{"name":"ab","hash":null,"count":0.00000000000000000000000000000000000001}`, "", "count must be a whole number"},
		{`{"name":"ab","hash":null,"on":"true"}`, "", "on must be true or false"},
		{`{"name":"ab","hash":null,"ids":[]}`, "", "ids must have 1 to 2 items"},
		{`{"name":"ab","hash":null,"ids":["a",7]}`, "", "ids[1] must be a string"},
		{`{"name":"ab","hash":null,"at":{"line":1}}`, "", "at.path is required"},
		{`{"name":"ab","hash":null,"naem":1}`, "", "naem is unknown; the known names are name, hash, count, on, ids, at"},
		{`{"name":"ab","hash":null,"\u0000\n":1}`, "", "?? is unknown"},
		{`{"name":5,"name":"ab","hash":null}`, "", "name is there twice"},
		{`{"name":"ab","hash":null,"\u006eame":"cd"}`, "", "name is there twice"},
		{`{"name":"ab","hash":null,"at":{"path":"x","line":1,"path":"y"}}`, "", "path is there twice"},
		{`{"name":"ab","hash":null,"ids":["a",{"x":[],"x":1}]}`, "", "x is there twice"},
	} {
		out, problems := testSchema().Read(json.RawMessage(c.in))
		if got := strings.Join(problems, "; "); string(out) != c.out || (c.problem == "") != (got == "") || !strings.Contains(got, c.problem) {
			t.Errorf("%s: %s, %q; want %s, %q", c.in, out, got, c.out, c.problem)
		}
	}
}

func TestOneRefusalNamesFewProblems(t *testing.T) {
	many := map[string]any{}
	for i := range 100 {
		many[strings.Repeat("x", i+1)] = 1
	}
	if _, problems := testSchema().Read(Encode(many)); len(problems) != maxProblems {
		t.Errorf("%d problems", len(problems))
	}
}

// TestReadIsStable: what is accepted is accepted again in the form that it was
// given, and never changes after that.
func TestReadIsStable(t *testing.T) {
	s := testSchema()
	rapid.Check(t, func(t *rapid.T) {
		in := map[string]any{
			"name": rapid.StringN(0, 6, -1).Draw(t, "name"),
			"hash": rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.StringMatching("[0-9a-f]{3,5}"), func(s string) any { return s })).Draw(t, "hash"),
		}
		if rapid.Bool().Draw(t, "with count") {
			in["count"] = json.Number(rapid.SampledFrom([]string{"0", "10", "11", "-1", "5.0", "5.5", "1e1", "-0"}).Draw(t, "count"))
		}
		once, problems := s.Read(Encode(in))
		if len(problems) > 0 {
			return
		}
		var decoded struct {
			Name  string
			Hash  *string
			Count *int
		}
		if err := json.Unmarshal(once, &decoded); err != nil {
			t.Fatalf("%s does not decode: %v", once, err)
		}
		twice, problems := s.Read(once)
		if len(problems) > 0 || string(twice) != string(once) {
			t.Fatalf("%s, then %s, %v", once, twice, problems)
		}
	})
}

func FuzzReadArguments(f *testing.F) {
	f.Add([]byte(`{"name":"ab","hash":null,"count":5.0}`))
	f.Add([]byte(`{"at":{"path":1e999}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		out, problems := testSchema().Read(raw)
		if len(problems) == 0 && !json.Valid(out) {
			t.Errorf("%q became %q", raw, out)
		}
	})
}
