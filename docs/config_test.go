package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"

	"agentrelay/internal/config"
)

// TestConfigPageListsEveryKey: docs/config.md is written from the types of the config,
// their comments and their rules.
func TestConfigPageListsEveryKey(t *testing.T) {
	r := jsonschema.Reflector{Anonymous: true, ExpandedStruct: true, RequiredFromJSONSchemaTags: true}
	if err := r.AddGoComments("agentrelay/docs", "../internal/config"); err != nil {
		t.Fatal(err)
	}
	page := configPage{root: r.ReflectFromType(reflect.TypeFor[config.Config]()), defaults: defaults(t)}
	page.WriteString(`# The config

Every key of ` + "`config.json`" + `, which lies at ` + "`$XDG_CONFIG_HOME/agent-relay/config.json`" + `, else at ` + "`~/.config/agent-relay/config.json`" + `, or where ` + "`--config`" + ` says. All keys are
optional unless they are marked. [config.example.json](../config.example.json) shows the common ones, and an editor that is given [config.schema.json](../config.schema.json) completes them. An
unknown key is refused, with its line and the nearest name; ` + "`gateway config check`" + ` prints the config as it is read. Changes hold from the next start on.

Paths of this machine may begin with ` + "`~`" + ` or ` + "`$HOME`" + `. The config holds no secret: secrets are named by file or by environment variable.

This page is written by ` + "`go test ./docs -update`" + ` from the types in internal/config, and checked against them.
`)
	page.object("", page.root)
	got := page.String()
	if *update {
		if err := os.WriteFile("config.md", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("config.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/config.md is out of date, run go test ./docs -update (-page +types):\n%s", diff)
	}
}

// defaults are what an empty config says.
func defaults(t *testing.T) map[string]any {
	t.Helper()
	c, err := config.Default(func(name string) string { return map[string]string{"HOME": "/home/you"}[name] })
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(c.JSON(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

type configPage struct {
	strings.Builder
	root     *jsonschema.Schema
	defaults map[string]any
}

// object writes the keys of an object, and then a section for each object in it.
func (p *configPage) object(path string, s *jsonschema.Schema) {
	type section struct {
		path string
		s    *jsonschema.Schema
		text string
	}
	var sections []section
	title, rows := path, ""
	if path == "" {
		title = "Top level"
	}
	for pair := s.Properties.Oldest(); pair != nil; pair = pair.Next() {
		key, member := strings.TrimPrefix(path+"."+pair.Key, "."), pair.Value
		switch inner := p.deref(member); {
		case inner.Properties != nil:
			sections = append(sections, section{key, inner, member.Description})
			continue
		case inner.Items != nil && p.deref(inner.Items).Properties != nil:
			sections = append(sections, section{key + "[]", p.deref(inner.Items), member.Description})
		}
		rows += p.row(key, pair.Key, member, slices.Contains(s.Required, pair.Key))
	}
	if rows != "" {
		fmt.Fprintf(p, "\n## %s\n\n| key | form | default | what |\n|---|---|---|---|\n%s", title, rows)
	}
	for _, s := range sections {
		p.object(s.path, s.s)
	}
}

func (p *configPage) deref(s *jsonschema.Schema) *jsonschema.Schema {
	if name, ok := strings.CutPrefix(s.Ref, "#/$defs/"); ok {
		return p.root.Definitions[name]
	}
	return s
}

func (p *configPage) row(path, key string, s *jsonschema.Schema, required bool) string {
	standard := "`" + p.standard(path, s) + "`"
	switch {
	case required:
		standard = "*required*"
	case standard == "``", standard == "`\"\"`":
		standard = ""
	}
	text := strings.ReplaceAll(strings.Join(strings.Fields(s.Description), " "), "|", `\|`)
	for _, open := range []string{"<", ">"} {
		text = strings.ReplaceAll(text, open, map[string]string{"<": "&lt;", ">": "&gt;"}[open])
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", key, p.form(s), standard, text)
}

// standard is the default of a key: that of an empty config, or of its rule when it
// stands in a list.
func (p *configPage) standard(path string, s *jsonschema.Schema) string {
	var at any = p.defaults
	for _, key := range strings.Split(path, ".") {
		members, _ := at.(map[string]any)
		at = members[key]
	}
	if at == nil {
		at = s.Default
	}
	if at == nil || at == "" {
		return ""
	}
	raw, err := json.Marshal(at)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(string(raw), "/home/you", "~")
}

// form is what a value may be.
func (p *configPage) form(s *jsonschema.Schema) string {
	s = p.deref(s)
	switch {
	case len(s.Enum) > 0:
		var words []string
		for _, e := range s.Enum {
			words = append(words, fmt.Sprintf("`%v`", e))
		}
		return strings.Join(words, ", ")
	case s.Type == "array":
		return "list of " + p.form(s.Items)
	case s.Properties != nil:
		return "object, below"
	case s.Type == "integer" && s.Minimum != "" && s.Maximum != "":
		return fmt.Sprintf("%s to %s", s.Minimum, s.Maximum)
	case s.Type == "boolean":
		return "`true`, `false`"
	}
	return s.Type
}
