package gateway

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/directtools"
	"agentrelay/internal/hosts"
	"agentrelay/internal/principal"
	"agentrelay/internal/tool"
	"agentrelay/internal/transfers"
)

// directTools are the thirteen tools of the Direct workspace: the definitions
// that workers have too, with calls that find the host and leave a record.
func directTools(w *workspace) []tool.Tool {
	tools := directtools.All()
	calls := w.calls()
	for i := range tools {
		tools[i].Call = calls[tools[i].Name]
	}
	return tools
}

func (w *workspace) calls() map[string]tool.Call {
	return map[string]tool.Call{
		"list_direct_projects": onHost(w, alike(hosts.Workspace.ListDirectProjects)),
		"list_direct_files":    onHost(w, alike(hosts.Workspace.ListDirectFiles)),
		"search_direct_files": onHost(w, recordedRead(w, alike(hosts.Workspace.SearchDirectFiles), func(in files.SearchDirectFilesIn) deed {
			return deed{"file.search", in.Path, in.ProjectID}
		})),
		"read_direct_file": onHost(w, recordedRead(w, alike(hosts.Workspace.ReadDirectFile), func(in files.ReadDirectFileIn) deed {
			return deed{"file.read", in.Path, in.ProjectID}
		})),
		"write_direct_file": onHost(w, recordedChange(w, alike(hosts.Workspace.WriteDirectFile),
			func(in files.WriteDirectFileIn) deed { return deed{"file.write", in.Path, in.ProjectID} },
			func(out files.WriteDirectFileOut) []any {
				return []any{"size", out.Size, "created", out.Created, "duplicate", out.Duplicate}
			})),
		"edit_direct_file": onHost(w, recordedChange(w, editFile,
			func(in files.EditDirectFileIn) deed { return deed{"file.edit", in.Path, in.ProjectID} },
			func(out files.EditDirectFileOut) []any {
				return []any{"size", out.Size, "replacements", out.Replacements, "duplicate", out.Duplicate}
			})),
		"run_direct_command": onHost(w, recordedChange(w, owned(hosts.Workspace.RunDirectCommand),
			func(in commands.RunDirectCommandIn) deed { return deed{"command.run", in.RequestID, in.ProjectID} },
			func(out commands.RunDirectCommandOut) []any {
				return []any{"command", out.CommandID, "duplicate", out.Duplicate}
			})),
		"read_direct_command": onHost(w, owned(hosts.Workspace.ReadDirectCommand)),
		"write_direct_command_input": onHost(w, recordedChange(w, writeInput,
			func(in commands.WriteDirectCommandInputIn) deed { return deed{"command.input", in.CommandID, ""} },
			func(out inputAnswer) []any {
				return []any{"input", out.InputID, "state", out.State, "eof", out.EOF, "duplicate", out.Duplicate}
			})),
		"cancel_direct_command": onHost(w, recordedChange(w, owned(hosts.Workspace.CancelDirectCommand),
			func(in commands.CancelDirectCommandIn) deed { return deed{"command.cancel", in.CommandID, ""} },
			func(out commands.CancelDirectCommandOut) []any { return []any{"requested", out.CancelRequested} })),
		"export_direct_file":  transfer(w, func(in *transfers.ExportDirectFileIn) *string { return &in.HostID }, w.transfers.ExportDirectFile),
		"import_direct_file":  transfer(w, func(in *transfers.ImportDirectFileIn) *string { return &in.HostID }, w.transfers.ImportDirectFile),
		"get_direct_transfer": transfer(w, func(in *transfers.GetDirectTransferIn) *string { return &in.HostID }, w.transfers.GetDirectTransfer),
	}
}

// editFile shows what is in the file to a client that may read files.
func editFile(at site, ctx context.Context, who principal.Principal, in files.EditDirectFileIn) (files.EditDirectFileOut, error) {
	out, err := at.EditDirectFile(ctx, in)
	if !who.Permissions.Has(principal.FilesRead) {
		return files.Unseen(out, err)
	}
	return out, err
}

// inputAnswer is an answer of the domain with its host.
type inputAnswer struct {
	commands.WriteDirectCommandInputOut
	HostID string `json:"hostId"`
}

func writeInput(at site, ctx context.Context, who principal.Principal, in commands.WriteDirectCommandInputIn) (inputAnswer, error) {
	out, err := at.WriteDirectCommandInput(ctx, who, in)
	return inputAnswer{out, at.id}, err
}

// transferAnswer is a transfer, and a link to what can be downloaded.
type transferAnswer struct{ transfers.Transfer }

// Links implements [tool.Linked].
func (t transferAnswer) Links() []mcp.Content {
	if t.DownloadURL == "" {
		return nil
	}
	return []mcp.Content{&mcp.ResourceLink{
		URI: t.DownloadURL, Name: t.FileName, MIMEType: t.MimeType, Size: t.Size,
		Description: "Download of " + t.FileName + ", for whoever has this link, until " + t.ExpiresAt.String() + ".",
	}}
}

// transfer is a method of transfers, which take the host's canonical id. They
// reach for the host themselves, for what they hold is answered without it.
func transfer[In any](w *workspace, place func(*In) *string, do func(context.Context, principal.Principal, In) (transfers.Transfer, error)) tool.Call {
	return tool.Calls(func(ctx context.Context, who principal.Principal, in In) (transferAnswer, error) {
		id := place(&in)
		var named *string
		if *id != "" {
			named = id
		}
		h, err := w.hosts.Resolve(named)
		if err != nil {
			return transferAnswer{}, err
		}
		*id = h.ID()
		out, err := do(ctx, who, in)
		return transferAnswer{out}, err
	})
}
