package worker_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/tool"
)

// TestAnswersSurvive sends answers with anything in them as a worker does, and
// reads them as the gateway does: callers must not see a difference.
func TestAnswersSurvive(t *testing.T) {
	for _, out := range []any{
		direct.ListDirectProjectsOut{}, files.ListDirectFilesOut{}, files.SearchDirectFilesOut{}, files.ReadDirectFileOut{},
		files.WriteDirectFileOut{}, files.EditDirectFileOut{}, commands.RunDirectCommandOut{}, commands.ReadDirectCommandOut{},
		commands.WriteDirectCommandInputOut{}, commands.CancelDirectCommandOut{},
	} {
		t.Run(reflect.TypeOf(out).Name(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				v := reflect.New(reflect.TypeOf(out))
				fill(t, v.Elem())
				sent := tool.Encode(v.Interface())
				text := tool.Answer(json.RawMessage(sent), false).Content[0].(*mcp.TextContent).Text
				got := reflect.New(reflect.TypeOf(out))
				if err := json.Unmarshal([]byte(text), got.Interface()); err != nil {
					t.Fatal(err)
				}
				if again := tool.Encode(got.Interface()); !bytes.Equal(sent, again) {
					t.Fatalf("%s\nbecame\n%s", sent, again)
				}
			})
		})
	}
}

// fill puts something into v and all that is in it.
func fill(t *rapid.T, v reflect.Value) {
	switch v.Interface().(type) {
	case files.Time, commands.Time:
		ms := rapid.Int64Range(0, 4_000_000_000_000).Draw(t, "time")
		v.Field(0).Set(reflect.ValueOf(time.UnixMilli(ms).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "there") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "length")
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(t, v.Index(i))
		}
	case reflect.String:
		v.SetString(rapid.String().Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "number"))
	default:
		t.Fatalf("a %v can't be filled", v.Type())
	}
}
