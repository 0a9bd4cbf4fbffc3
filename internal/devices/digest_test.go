package devices

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/devices/wire"
)

func digestOf(schema string) Digest {
	return offer([]wire.ToolInfo{{Name: "run", Desc: "Run a shell command on this device.", Schema: json.RawMessage(schema), Requires: []string{"shell", "net"}}})[0].digest("laptop")
}

// TestDigestOfTheSpecification is its example, to the byte but for white space.
func TestDigestOfTheSpecification(t *testing.T) {
	got, err := json.Marshal(digestOf(`{"type":"object","properties":{"cmd":{"type":"string","description":"the command line"},"timeout_s":{"type":"integer","default":60}},"required":["cmd"]}`))
	want := `{"device":"laptop","tool":"run","desc":"Run a shell command on this device.","requires":["shell","net"],` +
		`"args":[{"name":"cmd","type":"string","required":true,"desc":"the command line"},` +
		`{"name":"timeout_s","type":"integer","required":false,"default":60,"desc":null}],"complex":false}`
	if err != nil || string(got) != want {
		t.Errorf("%s\n%v", cmp.Diff(want, string(got)), err)
	}
}

func TestDigestSaysWhatItFlattens(t *testing.T) {
	for schema, want := range map[string]struct {
		args    string
		complex bool
	}{
		`{"type":"object"}`: {`[]`, false},
		``:                  {`[]`, false},
		`{"properties":{"z":{"type":"number"},"a":{"enum":[1]}},"required":["a","gone"]}`: {`[{"name":"z","type":"number","required":false,"desc":null},{"name":"a","type":"any","required":true,"desc":null}]`, false},
		`{"properties":{"a":{"type":"array","items":{"type":"string"}}}}`:                 {`[{"name":"a","type":"array","required":false,"desc":null}]`, true},
		`{"properties":{"a":{"type":"object"}}}`:                                          {`[{"name":"a","type":"object","required":false,"desc":null}]`, true},
		`{"properties":{"a":{"type":["string","null"],"default":null}}}`:                  {`[{"name":"a","type":"string|null","required":false,"default":null,"desc":null}]`, true},
		`{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{}}}`:                      {`[{"name":"a","type":"any","required":false,"desc":null}]`, true},
		`{"properties":{"a":{"anyOf":[{"type":"string"}]}}}`:                              {`[{"name":"a","type":"any","required":false,"desc":null}]`, true},
		`{"oneOf":[{"required":["a"]}],"properties":{"a":{"type":"string"}}}`:             {`[{"name":"a","type":"string","required":false,"desc":null}]`, true},
		`{"properties":{"a":true,"b":{"type":5,"description":7}},"required":"a"}`:         {`[{"name":"a","type":"any","required":false,"desc":null},{"name":"b","type":"any","required":false,"desc":null}]`, true},
		`[]`: {`[]`, true},
	} {
		d := digestOf(schema)
		got, err := json.Marshal(d.Args)
		if err != nil || string(got) != want.args || d.Complex != want.complex {
			t.Errorf("%s: %s, complex %v, %v; want %s, %v", schema, got, d.Complex, err, want.args, want.complex)
		}
	}
}

func TestListsAreShort(t *testing.T) {
	r := newRelay(t)
	d := r.connect("laptop", r.pairDevice("laptop"))
	_ = d
	r.pairDevice("away")
	got, err := r.List(t.Context(), alice, ListIn{})
	all, ok := got.(Listing)
	if err != nil || !ok || len(all.Devices) != 1 || len(all.Offline) != 1 || all.Offline[0].SeenAt != nil || all.Devices[0].SeenAt.IsZero() {
		t.Fatalf("%+v %v", got, err)
	}
	if diff := cmp.Diff([]Summary{{Name: "echo", Desc: "Say it again."}, {Name: "run", Desc: "Run a shell command on this device."}}, all.Devices[0].Tools); diff != "" {
		t.Error(diff)
	}
	got, err = r.List(t.Context(), alice, ListIn{Device: "laptop"})
	one, ok := got.(One)
	if err != nil || !ok || one.Platform != "linux x86_64" || len(one.Tools) != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if diff := cmp.Diff(Summary{"run", "Run a shell command on this device.\nIn a shell.", []string{"shell", "net"}}, one.Tools[1]); diff != "" {
		t.Error(diff)
	}
	got, err = r.Schema(t.Context(), alice, SchemaIn{Device: "laptop", Tool: "run", Full: true})
	full, ok := got.(Full)
	if err != nil || !ok || !json.Valid(full.Schema) || len(full.Schema) < 50 {
		t.Fatalf("%+v %v", got, err)
	}
}

// FuzzDigest: any schema has a digest that is JSON, with each argument once.
func FuzzDigest(f *testing.F) {
	f.Add([]byte(`{"properties":{"a":{"default":1},"a":{"type":["x"]}},"required":["a"]}`))
	f.Add([]byte(`{"properties":[],"type":{}}`))
	f.Fuzz(func(t *testing.T, schema []byte) {
		if !json.Valid(schema) {
			return // a frame has none
		}
		d := digestOf(string(schema))
		if _, err := json.Marshal(d); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, a := range d.Args {
			if seen[a.Name] {
				t.Fatalf("%q is there twice", a.Name)
			}
			seen[a.Name] = true
		}
	})
}
