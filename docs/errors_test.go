package docs_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/admin"
	"agentrelay/internal/agents"
	"agentrelay/internal/channel"
	"agentrelay/internal/channel/client"
	"agentrelay/internal/cli/peeragent"
	"agentrelay/internal/devices"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	hosttransfers "agentrelay/internal/direct/transfers"
	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/gateway"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/worker/server"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/transfers"
)

var update = flag.Bool("update", false, "write the generated pages anew")

// families are the refusals of the product in the order of the page.
var families = []struct {
	title, where string
	kinds        []fault.Kind
}{
	{"Every tool", "In `structuredContent.error` of a tool result, and wherever else a refusal has no family of its own.", fault.Kinds()},
	{"Mailbox tools", "In `structuredContent.error` of a tool result.", mailbox.Kinds()},
	{"Direct tools", "In `structuredContent.error` of a tool result.", slices.Concat(direct.Kinds(), files.Kinds())},
	{"Direct commands", "In `structuredContent.error` of a tool result; from `not_started` on in `error` of a command's receipt, where the call itself has not failed.", commands.Kinds()},
	{"Direct transfers", "In `structuredContent.error` of a tool result, in `error` of a transfer's receipt, and in `error` of the JSON body of `/files/`.", slices.Concat(hosttransfers.Kinds(), transfers.Kinds())},
	{"Other machines", "In `structuredContent.error` of a tool result; the last ones from `peer-agent worker` when a client other than the gateway uses it.", slices.Concat(hosts.Kinds(), server.Kinds())},
	{"Agents", "In `structuredContent.error` of a tool result, in `error` of a dispatch's receipt, and in `reason` of a result.", agents.Kinds()},
	{"Devices", "In `structuredContent.error` of a tool result; the last two on standard error of an owner's command.", devices.Kinds()},
	{"HTTP and MCP", "In `error` of a JSON body, or in `error.data` of a JSON-RPC error.", gateway.Kinds()},
	{"MCP Events", "In `error.data` of a JSON-RPC error, whose number follows `events.errorCodes`; the last two on standard error of an owner's command.", events.Kinds()},
	{"OAuth", "In `error` of an OAuth answer, as the RFCs name them, with `error_description`, `hint` and `id` beside it; or on a page for the owner.", oauth.Kinds()},
	{"Agents' channel", "In `error` of the JSON body that the channel's socket answers, and of what `peer-agent` prints; the last four also on standard error of an owner's command.", channel.Kinds()},
	{"peer-agent", "In `error` of what `peer-agent` prints, which may also be any refusal of the channel or the mailbox, and `outcome_unknown`.", slices.Concat(peeragent.PeerKinds(), client.Kinds())},
	{"Owner's commands", "On standard error of a command, or in its JSON.", admin.Kinds()},
}

func TestErrorsPageListsEveryRefusal(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Refusals

Whatever Agent Relay refuses has a stable code, a message about this one case, and the next step. The short ` + "`id`" + ` of a refusal stands
in the gateway's log line of the same request. *Again* says whether the identical call may succeed later.

This page is written by ` + "`go test ./docs -update`" + ` from the declarations in the code, and checked against them.
`)
	seen := map[string]string{}
	code := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for _, f := range families {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| code | next step | again |\n|---|---|---|\n", f.title, f.where)
		for _, k := range f.kinds {
			if !code.MatchString(k.Code) || k.Hint == "" {
				t.Errorf("%s: the kind %q needs a lower_snake code and a hint", f.title, k.Code)
			}
			// A code that every tool knows may have a closer next step in a family.
			if other, ok := seen[k.Code]; ok && other != families[0].title {
				t.Errorf("%s and %s both declare %q", other, f.title, k.Code)
			}
			if _, ok := seen[k.Code]; !ok {
				seen[k.Code] = f.title
			}
			again := ""
			if k.Retryable {
				again = "yes"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Code, strings.ReplaceAll(k.Hint, "|", "\\|"), again)
		}
	}
	golden(t, "errors.md", b.String())
}

func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is out of date, run go test ./docs -update:\n%s", file, diff)
	}
}
