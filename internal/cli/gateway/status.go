package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/audit"
	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/store"
)

// statusOut is the JSON of the status command.
type statusOut struct {
	Running bool `json:"running"`
	// Gateway is what the running gateway says of itself; null when none runs.
	Gateway *gateway.Status `json:"gateway"`
	// Offline is what can be said without it.
	Offline *offline      `json:"offline,omitempty"`
	Audit   []audit.Entry `json:"audit,omitempty"`
}

// offline is what the disk tells of a gateway that does not run.
type offline struct {
	ConfigPath string `json:"configPath"`
	StateDir   string `json:"stateDir"`
	MCPURL     string `json:"mcpUrl"`
	Used       bool   `json:"used"` // there is a database
	Clients    int    `json:"clients"`
	Peers      int    `json:"peers"` // that are not stopped
}

func (a *app) statusCommand() *cobra.Command {
	var entries int
	c := a.withJSON(&cobra.Command{
		Use:   "status",
		Short: "Say what the gateway is doing",
		Long: `Asks the running gateway, over a socket that only you can open. When none runs, it
says what the disk tells and ends with exit code 1.`,
		Example: `  gateway status
  gateway status --audit 20
  gateway status --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if entries < 0 || entries > 1000 {
				return usage("--audit must be from 0 to 1000")
			}
			c, _, err := a.load()
			if err != nil {
				return err
			}
			out, err := a.readStatus(cmd.Context(), c, entries)
			if err != nil {
				return err
			}
			if err := a.printStatus(out); err != nil {
				return err
			}
			if !out.Running {
				return failed(`start it with "gateway serve`+a.configFlag()+`"`, "the gateway is not running")
			}
			if !out.Gateway.Ready {
				return failed("its log says more", "the gateway is not ready: %s", out.Gateway.Reason)
			}
			return nil
		},
	})
	c.Flags().IntVar(&entries, "audit", 0, "also the last `n` entries of the audit log, at most 1000")
	return c
}

func (a *app) readStatus(ctx context.Context, c *config.Config, entries int) (statusOut, error) {
	conn, err := admin.DialRunning(ctx, c.StateDir)
	if err != nil {
		return statusOut{}, err
	}
	if conn == nil {
		return a.readOffline(ctx, c, entries)
	}
	defer conn.Close()
	out := statusOut{Running: true, Gateway: &gateway.Status{}}
	raw, err := admin.Status.Call(ctx, conn, admin.None{})
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(raw, out.Gateway); err != nil {
		return out, fmt.Errorf("the gateway is another version, restart it: %w", err)
	}
	if entries > 0 {
		out.Audit, err = admin.Audit.Call(ctx, conn, admin.AuditIn{Limit: entries})
	}
	return out, err
}

// readOffline looks at the disk. It makes nothing that is not there.
func (a *app) readOffline(ctx context.Context, c *config.Config, entries int) (statusOut, error) {
	path, _, err := a.path()
	if err != nil {
		return statusOut{}, err
	}
	o := &offline{ConfigPath: path, StateDir: c.StateDir, MCPURL: c.MCPURL()}
	out := statusOut{Offline: o}
	if _, err := os.Lstat(filepath.Join(c.StateDir, store.FileName)); errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	o.Used = true
	conn, err := a.dial(ctx)
	if err != nil {
		return out, err
	}
	defer conn.Close()
	clients, err := admin.ListClients.Call(ctx, conn, admin.None{})
	if err != nil {
		return out, err
	}
	o.Clients = len(clients)
	limit := 200
	for in := (admin.PeersIn{Limit: &limit}); ; {
		page, err := admin.ListPeers.Call(ctx, conn, in)
		if err != nil {
			return out, err
		}
		o.Peers += len(page.Peers)
		if page.NextCursor == "" {
			break
		}
		in.Cursor = &page.NextCursor
	}
	if entries > 0 {
		out.Audit, err = admin.Audit.Call(ctx, conn, admin.AuditIn{Limit: entries})
	}
	return out, err
}

func (a *app) printStatus(out statusOut) error {
	if a.json {
		return a.printJSON(a.Stdout, out)
	}
	var lines [][2]string
	if out.Running {
		lines = runningLines(out.Gateway)
	} else {
		lines = offlineLines(out.Offline)
	}
	for _, l := range lines {
		fmt.Fprintf(a.Stdout, "%-9s %s\n", l[0], clean(l[1]))
	}
	if out.Running {
		for _, w := range out.Gateway.Warnings {
			fmt.Fprintln(a.Stdout, wrap("\nWarning: "+clean(w.Text)))
		}
	}
	if len(out.Audit) == 0 {
		return nil
	}
	fmt.Fprintln(a.Stdout)
	return a.printAudit(out.Audit)
}

func runningLines(s *gateway.Status) [][2]string {
	state := "running"
	if !s.Ready {
		state = "running, not ready: " + s.Reason
	}
	version := s.Version
	if mine := thisBuild().Version; mine != version {
		version += ", this command is " + mine + ": restart the gateway if it was upgraded"
	}
	clients := fmt.Sprintf("%d, of which %d may use the gateway", s.Clients.Total, s.Clients.Authorized)
	if s.Clients.Total == 0 {
		clients = "none yet: add the MCP URL as a connector in a client"
	}
	peers := fmt.Sprintf("%d active, %d stopped", s.Peers.Active, s.Peers.Stopped)
	if s.Peers.Active+s.Peers.Stopped == 0 {
		peers = "none yet: a client makes one with register_peer"
	}
	owner := "each client has a domain of its own"
	if s.SharedOwner {
		owner = "all clients share one directory and mailbox"
	}
	lines := [][2]string{
		{"Gateway", state + ", started " + span(time.Duration(s.UptimeMs)*time.Millisecond) + " ago"},
		{"MCP URL", s.MCPURL},
		{"Version", version},
		{"State", fmt.Sprintf("%s (schema %d)", s.StateDir, s.Schema)},
		{"Tools", fmt.Sprintf("%d, surface %s", s.Tools, s.Surface)},
		{"Sharing", owner},
		{"Clients", clients},
		{"Peers", peers},
		{"Mail", plural(s.Peers.Unprocessed, "message") + " not processed yet"},
		{"Events", eventsLine(s.Events)},
		{"Projects", projectsLine(s.Projects)},
		{"Backups", backupsLine(s.Backups)},
	}
	if s.Devices.Paired > 0 {
		lines = append(lines, [2]string{"Devices", fmt.Sprintf("%d paired, %d connected: gateway devices list", s.Devices.Paired, s.Devices.Connected)})
	}
	return lines
}

func projectsLine(p gateway.Projects) string {
	switch {
	case p.Total == 0:
		return "none: clients can work on files once direct.projects of the config names some"
	case p.Unavailable > 0:
		return fmt.Sprintf("%d, of which %d can't be used", p.Total, p.Unavailable)
	}
	return strconv.Itoa(p.Total)
}

func backupsLine(b gateway.Backups) string {
	if b.NewestAt == nil {
		return "none yet"
	}
	return fmt.Sprintf("%d, the newest from %s", b.Count, b.NewestAt.UTC().Format("2006-01-02 15:04 UTC"))
}

func eventsLine(e gateway.Events) string {
	line := plural(int64(e.Subscriptions), "subscription") + ", " + plural(int64(e.Targets), "wake-up target")
	if e.Waiting > 0 {
		line += fmt.Sprintf(", %d on their way", e.Waiting)
	}
	if e.Dead > 0 {
		line += fmt.Sprintf(", %d dead: gateway events list --dead", e.Dead)
	}
	return line
}

func offlineLines(o *offline) [][2]string {
	lines := [][2]string{{"Gateway", "not running"}, {"MCP URL", o.MCPURL}, {"Config", o.ConfigPath}, {"State", o.StateDir}}
	if !o.Used {
		return append(lines, [2]string{"", "nothing is stored there yet"})
	}
	return append(lines, [2]string{"Clients", fmt.Sprint(o.Clients)}, [2]string{"Peers", fmt.Sprintf("%d active", o.Peers)})
}

// printAudit prints entries of the audit log, newest first.
func (a *app) printAudit(entries []audit.Entry) error {
	now := a.Now()
	rows := make([][]string, len(entries))
	for i, e := range entries {
		var detail []string
		for _, key := range sortedKeys(e.Detail) {
			detail = append(detail, fmt.Sprintf("%s=%v", key, e.Detail[key]))
		}
		rows[i] = []string{ago(now, e.At), e.ClientID, e.Action, e.Outcome, e.Subject, strings.Join(detail, " ")}
	}
	return table(a.Stdout, 4, []string{"WHEN", "BY", "ACTION", "OUTCOME", "ON", "DETAIL"}, rows)
}
