package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	validator "github.com/google/jsonschema-go/jsonschema"
	"github.com/invopop/jsonschema"
)

//go:generate go test -run TestSchemaIsCurrent -update .

var update = flag.Bool("update", false, "write config.schema.json anew")

const (
	schemaFile  = "../../config.schema.json"
	exampleFile = "../../config.example.json"
)

// schema makes the JSON Schema of the config: the comments of its Go types are
// the descriptions, the jsonschema tags the rules.
func schema(t *testing.T) []byte {
	t.Helper()
	r := jsonschema.Reflector{
		Anonymous:                  true,
		ExpandedStruct:             true,
		RequiredFromJSONSchemaTags: true,
	}
	if err := r.AddGoComments("agentrelay/internal/config", "."); err != nil {
		t.Fatal(err)
	}
	s := r.ReflectFromType(reflect.TypeFor[Config]())
	s.Title = "Agent Relay gateway config"
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(raw, '\n')
}

func TestSchemaIsCurrent(t *testing.T) {
	want := schema(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("config.schema.json is out of date, run go generate ./internal/config:\n%s", cmp.Diff(string(got), string(want)))
	}
}

func TestSchemaDescribesEveryKey(t *testing.T) {
	var walk func(where string, v any)
	walk = func(where string, v any) {
		object, _ := v.(map[string]any)
		if properties, ok := object["properties"].(map[string]any); ok {
			for name, p := range properties {
				if d, _ := p.(map[string]any)["description"].(string); d == "" {
					t.Errorf("%s.%s has no description", where, name)
				}
			}
		}
		for name, child := range object {
			walk(where+"."+name, child)
		}
	}
	var doc any
	if err := json.Unmarshal(schema(t), &doc); err != nil {
		t.Fatal(err)
	}
	walk("", doc)
}

// validate checks a config against the shipped schema.
func validate(t *testing.T, raw []byte) error {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s validator.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return resolved.Validate(doc)
}

func TestExampleIsValid(t *testing.T) {
	raw, err := os.ReadFile(exampleFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, raw); err != nil {
		t.Errorf("against the schema: %v", err)
	}
	c, warnings, err := Load(exampleFile, home)
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) > 0 {
		t.Errorf("the example has warnings: %v", warnings)
	}
	if c.PublicBaseURL != "https://gateway.example.com" || !c.SharedOwner {
		t.Errorf("got %q, sharedOwner %v", c.PublicBaseURL, c.SharedOwner)
	}
	if err := validate(t, c.JSON()); err != nil {
		t.Errorf("the effective config breaks the schema: %v", err)
	}
}
