// Package direct owns the policy of one host's Direct workspace: which projects
// there are, where they lie, what may be done in them, and what is never
// touched. Its subpackages (files, commands, transfers) do the work; they reach
// a project's files only through a [Tree] of this package.
//
// It promises that a [Place] found in a Tree lies in the project's canonical
// directory whatever happens to directories and links meanwhile, that protected
// paths are not reached under any name or link, that Git's own directories are
// not reached for writing, that a project whose directory is missing or hangs
// degrades that project and nothing else, and that no error names a path
// outside a project.
//
// It leaves to others: the config file (the caller makes a [Policy] of it),
// permissions of clients, the audit log, the network and the protocol. It runs
// unchanged inside a worker on another machine.
package direct

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// CommandMode says which commands may run in a project.
type CommandMode string

// The command modes.
const (
	Disabled   CommandMode = "disabled"   // none
	Registered CommandMode = "registered" // those of Project.Commands
	Full       CommandMode = "full"       // any
)

// Command is a registered command.
type Command struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
}

// Project is a directory of the host whose files and commands clients may use.
// Its values follow the rules of the config file (direct.projects).
type Project struct {
	ID          string      `json:"id"`
	Name        string      `json:"name"`
	Path        string      `json:"path"` // absolute; links in it are followed
	Read        bool        `json:"read"`
	Write       bool        `json:"write"`
	CommandMode CommandMode `json:"commandMode"`
	Commands    []Command   `json:"commands"`
}

// Policy is what the owner's config says about one host. It is also the form in
// which a worker on that host gets it.
type Policy struct {
	HostID   string    `json:"hostId"` // canonical
	Projects []Project `json:"projects"`
	// AllowedRoots are absolute directories. A project outside all of them is
	// unavailable, so none allows none.
	AllowedRoots []string `json:"allowedRoots"`
	// Protected are absolute files and directories that are neither read,
	// listed, searched nor written: state directories, the config file,
	// credential files, service units. They need not exist.
	Protected []string `json:"protected"`
	// FormerOwners are owners whose commands the shared owner has taken over. Their
	// records keep the names that they got from their owner.
	FormerOwners []string `json:"formerOwners,omitempty"`
}

// Host is the Direct workspace of one host. It is safe for concurrent use and
// holds no resources.
type Host struct {
	id       string
	projects []*project
	roots    []string
	off      []string // protected paths

	former []string

	protected identities // of the files in protected directories

	goos, home string // for the classification of refusals by the system

	eval     func(path string) (string, error) // filepath.EvalSymlinks
	patience time.Duration                     // see openBudget
}

// startBudget is how long New waits for directories on file systems that do not
// answer, and listBudget how long a list of the projects does.
const (
	startBudget = 2 * time.Second
	listBudget  = 1500 * time.Millisecond
)

// New makes the workspace of a policy and finds the projects' directories. It
// does not fail for a directory that is missing, outside the allowed roots or
// slow: such a project is unavailable, and looked for again when it is used.
func New(p Policy) *Host {
	home, _ := os.UserHomeDir() // "" classifies less
	h := &Host{
		id: p.HostID, roots: p.AllowedRoots, off: p.Protected, former: p.FormerOwners, goos: runtime.GOOS, home: home,
		eval: filepath.EvalSymlinks, patience: openBudget,
	}
	for _, conf := range p.Projects {
		h.projects = append(h.projects, &project{Project: conf})
	}
	ctx, cancel := context.WithTimeout(context.Background(), startBudget)
	defer cancel()
	h.locateAll(ctx) // what is wrong is said to those who use it
	return h
}

// FormerOwners is that of the policy. The caller must not change it.
func (h *Host) FormerOwners() []string { return h.former }

// ID is the canonical id of the host.
func (h *Host) ID() string { return h.id }

func inProtected() error {
	return ProjectUnavailable.New("The project lies in a protected directory of the gateway.")
}

// Inside reports whether path is dir or lies in it. Both are absolute and clean.
func Inside(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func (h *Host) named(projectID string) (*project, error) {
	for _, p := range h.projects {
		if p.ID == projectID {
			return p, nil
		}
	}
	return nil, UnknownProject.New("projectId names no project of this host.")
}

// Project returns the configuration of a project, whether or not its directory
// is there. Its Path is the owner's and must not go to callers.
func (h *Host) Project(projectID string) (Project, error) {
	p, err := h.named(projectID)
	if err != nil {
		return Project{}, err
	}
	return p.Project, nil
}

// ListDirectProjectsIn is the arguments of list_direct_projects: none, since
// the host was chosen before.
type ListDirectProjectsIn struct{}

// ListDirectProjectsOut is the answer of list_direct_projects, in the order of
// the config.
type ListDirectProjectsOut struct {
	Projects []ListedProject `json:"projects"`
	HostID   string          `json:"hostId"`
}

// ListedProject is what callers see of a project: not its path.
type ListedProject struct {
	ProjectID   string      `json:"projectId"`
	Name        string      `json:"name"`
	Read        bool        `json:"read"`
	Write       bool        `json:"write"`
	CommandMode CommandMode `json:"commandMode"`
	Commands    []Command   `json:"commands"`
	HostID      string      `json:"hostId"`
	// Unavailable says why nothing can be done in it now; "" when it can.
	Unavailable string `json:"unavailable,omitempty"`
}

// ListDirectProjects answers the projects of the host, those that are
// unavailable too, and those whose directory does not answer in time as such.
func (h *Host) ListDirectProjects(ctx context.Context, _ ListDirectProjectsIn) (ListDirectProjectsOut, error) {
	out := ListDirectProjectsOut{Projects: []ListedProject{}, HostID: h.id}
	soon, cancel := context.WithTimeout(ctx, listBudget)
	defer cancel()
	errs := h.locateAll(soon)
	if err := ctx.Err(); err != nil {
		return ListDirectProjectsOut{}, err
	}
	for i, p := range h.projects {
		l := ListedProject{
			ProjectID: p.ID, Name: p.Name, Read: p.Read, Write: p.Write,
			CommandMode: p.CommandMode, Commands: []Command{}, HostID: h.id,
		}
		if p.CommandMode != Disabled {
			l.Commands = append(l.Commands, p.Commands...)
		}
		if errs[i] != nil {
			l.Unavailable = message(errs[i])
		}
		out.Projects = append(out.Projects, l)
	}
	return out, nil
}
