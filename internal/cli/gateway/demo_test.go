package gateway

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

func TestDemoTellsTheWholeStory(t *testing.T) {
	h := newHome(t)
	t.Setenv("TMPDIR", t.TempDir()) // after the home, which lies in the other one
	out := h.ok("demo")
	last := -1
	for _, want := range []string{
		"gateway   listens on loopback",
		"writer    registers itself as an OAuth client",
		"writer    is allowed by the owner",
		`reviewer  registers the peer "reviewer"`,
		`writer    sends "Please review the draft."`,
		"reviewer  lists its inbox: 1 message waits",
		`reviewer  replies "Reviewed: see the notes."`,
		"reviewer  acknowledges it as processed",
		"writer    reads the text",
		"writer    acknowledges it as processed",
		"Done in",
	} {
		at := strings.Index(out, want)
		if at < last || at < 0 {
			t.Fatalf("%q is missing or out of order in\n%s", want, out)
		}
		last = at
	}
	if secret := regexp.MustCompile(`ar_(at|rt|code)_`).FindString(out); secret != "" {
		t.Errorf("the transcript holds a token:\n%s", out)
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) != 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
	if files, _ := os.ReadDir(h.dir); len(files) != 0 {
		t.Errorf("the demo wrote into the home directory: %v", files)
	}
}

func TestDemoForPrograms(t *testing.T) {
	var got struct {
		Steps []demoStep
		Ms    float64
	}
	if err := json.Unmarshal([]byte(newHome(t).ok("demo", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Steps) < 15 || got.Ms <= 0 {
		t.Fatalf("got %+v", got)
	}
}
