package workspace

import (
	"context"

	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/principal"
)

// ListDirectFiles implements [hosts.Workspace].
func (w *Workspace) ListDirectFiles(ctx context.Context, in files.ListDirectFilesIn) (files.ListDirectFilesOut, error) {
	return w.Files.ListDirectFiles(ctx, in)
}

// SearchDirectFiles implements [hosts.Workspace].
func (w *Workspace) SearchDirectFiles(ctx context.Context, in files.SearchDirectFilesIn) (files.SearchDirectFilesOut, error) {
	return w.Files.SearchDirectFiles(ctx, in)
}

// ReadDirectFile implements [hosts.Workspace].
func (w *Workspace) ReadDirectFile(ctx context.Context, in files.ReadDirectFileIn) (files.ReadDirectFileOut, error) {
	return w.Files.ReadDirectFile(ctx, in)
}

// WriteDirectFile implements [hosts.Workspace].
func (w *Workspace) WriteDirectFile(ctx context.Context, in files.WriteDirectFileIn) (files.WriteDirectFileOut, error) {
	return w.Files.WriteDirectFile(ctx, in)
}

// EditDirectFile implements [hosts.Workspace].
func (w *Workspace) EditDirectFile(ctx context.Context, in files.EditDirectFileIn) (files.EditDirectFileOut, error) {
	return w.Files.EditDirectFile(ctx, in)
}

// RunDirectCommand implements [hosts.Workspace].
func (w *Workspace) RunDirectCommand(ctx context.Context, who principal.Principal, in commands.RunDirectCommandIn) (commands.RunDirectCommandOut, error) {
	return w.Commands.RunDirectCommand(ctx, who, in)
}

// ReadDirectCommand implements [hosts.Workspace].
func (w *Workspace) ReadDirectCommand(ctx context.Context, who principal.Principal, in commands.ReadDirectCommandIn) (commands.ReadDirectCommandOut, error) {
	return w.Commands.ReadDirectCommand(ctx, who, in)
}

// WriteDirectCommandInput implements [hosts.Workspace].
func (w *Workspace) WriteDirectCommandInput(ctx context.Context, who principal.Principal, in commands.WriteDirectCommandInputIn) (commands.WriteDirectCommandInputOut, error) {
	return w.Commands.WriteDirectCommandInput(ctx, who, in)
}

// CancelDirectCommand implements [hosts.Workspace].
func (w *Workspace) CancelDirectCommand(ctx context.Context, who principal.Principal, in commands.CancelDirectCommandIn) (commands.CancelDirectCommandOut, error) {
	return w.Commands.CancelDirectCommand(ctx, who, in)
}
