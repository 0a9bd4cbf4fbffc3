package gateway

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/backup"
	"agentrelay/internal/config"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

func (a *app) supportBundleCommand() *cobra.Command {
	var to, log string
	c := a.withJSON(&cobra.Command{
		Use:   "support-bundle",
		Short: "Pack what helps others to find a fault, without your secrets",
		Long: `Writes an archive with the version, what the gateway says of itself, its numbers, the
config without names and places, the form of the database and how many rows it has, the
rights of its files, and the end of the log. Passwords, keys, tokens, messages, commands,
files, names of clients and peers, and addresses of people are not in it. Look at it
before you send it: tar xzOf FILE.`,
		Example: `  gateway support-bundle
  gateway support-bundle --to ~/bundle.tar.gz --log /var/log/relay.log`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				to = "agent-relay-support-" + a.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			path, err := filepath.Abs(to)
			if err != nil {
				return err
			}
			names, err := a.writeBundle(cmd.Context(), path, log)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, map[string]any{"path": path, "files": names})
			}
			_, err = fmt.Fprintf(a.Stdout, "%s\nIt has %s. Look at it before you send it: tar xzOf %s\n", clean(path), strings.Join(names, ", "), clean(path))
			return err
		},
	})
	c.Flags().StringVar(&to, "to", "", "the `file` to write (default: a new one in this directory)")
	c.Flags().StringVar(&log, "log", "", "the gateway's log `file` (default: that of its service)")
	return c
}

// bundleFile is a file of a bundle.
type bundleFile struct {
	name string
	make func() ([]byte, error)
}

// writeBundle makes an archive. What can't be found out is said in it and stops
// nothing: a bundle is for gateways that are broken.
func (a *app) writeBundle(ctx context.Context, path, log string) (names []string, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, failed("name another with --to", "the bundle can't be written: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(path)
		}
	}()
	zip := gzip.NewWriter(f)
	w := tar.NewWriter(zip)
	r := &redactor{home: a.Getenv("HOME")}
	c, remarks, loadErr := a.load()
	files := []bundleFile{{"about.json", func() ([]byte, error) { return indented(a.about(loadErr, r)) }}}
	if loadErr == nil {
		files = append(files,
			bundleFile{"config.json", func() ([]byte, error) { return r.config(c.JSON()) }},
			bundleFile{"remarks.json", func() ([]byte, error) { return indented(keysOf(remarks)) }},
			bundleFile{"status.json", func() ([]byte, error) { return a.bundleStatus(ctx, c) }},
			bundleFile{"files.json", func() ([]byte, error) { return indented(a.bundleFacts(c)) }},
			bundleFile{"metrics.txt", func() ([]byte, error) { return bundleMetrics(ctx, c) }},
			bundleFile{"log.jsonl", func() ([]byte, error) { return a.bundleLog(ctx, c, log, r) }},
		)
		d, describeErr := store.Describe(ctx, c.StateDir)
		files = append(files,
			bundleFile{"schema.sql", func() ([]byte, error) { return []byte(d.Tables), describeErr }},
			bundleFile{"rows.json", func() ([]byte, error) {
				raw, err := indented(d)
				return raw, errors.Join(describeErr, err)
			}},
		)
	}
	for _, file := range files {
		raw, err := file.make()
		if err != nil {
			file.name, raw = file.name+".error.txt", []byte(r.text(err.Error())+"\n")
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: 0o600, Size: int64(len(raw)), ModTime: a.Now()}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(raw); err != nil {
			return nil, err
		}
		names = append(names, file.name)
	}
	return names, errors.Join(w.Close(), zip.Close(), f.Sync())
}

func indented(v any) ([]byte, error) {
	raw, err := json.MarshalIndent(v, "", "  ")
	return append(raw, '\n'), err
}

func (a *app) about(loadErr error, r *redactor) any {
	out := map[string]any{"build": thisBuild(), "at": a.Now().UTC(), "uid": os.Getuid()}
	if loadErr != nil {
		out["config"] = r.text(loadErr.Error())
	}
	if raw, err := os.ReadFile("/proc/version"); err == nil {
		out["system"] = strings.Join(strings.Fields(string(raw))[:3], " ")
	}
	return out
}

func keysOf(remarks []config.Remark) []string {
	keys := make([]string, len(remarks))
	for i, r := range remarks {
		keys[i] = r.Key
	}
	return keys
}

// bundleStatus is the status in numbers; of warnings it has the names.
func (a *app) bundleStatus(ctx context.Context, c *config.Config) ([]byte, error) {
	s, err := a.readStatus(ctx, c, 0)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"running": s.Running}
	if s.Running {
		g := s.Gateway
		warnings := []string{}
		for _, w := range g.Warnings {
			warnings = append(warnings, w.Name)
		}
		out["gateway"] = map[string]any{
			"version": g.Version, "uptimeMs": g.UptimeMs, "ready": g.Ready, "schema": g.Schema, "surface": g.Surface, "tools": g.Tools, "sharedOwner": g.SharedOwner,
			"clients": g.Clients, "peers": g.Peers, "events": g.Events, "projects": g.Projects, "backups": g.Backups, "warnings": warnings,
		}
	}
	return indented(out)
}

// bundleFacts are sizes and rights of the files that matter.
func (a *app) bundleFacts(c *config.Config) any {
	type fact struct {
		Mode  string `json:"mode,omitempty"`
		Bytes int64  `json:"bytes,omitempty"`
		AgeS  int64  `json:"ageSeconds,omitempty"`
		Error string `json:"error,omitempty"`
	}
	out := map[string]any{}
	for name, path := range map[string]string{
		"stateDir": c.StateDir, "database": filepath.Join(c.StateDir, store.FileName), "log": filepath.Join(c.StateDir, store.FileName+"-wal"),
		"key": filepath.Join(c.StateDir, sealing.FileName), "ownerFile": c.OwnerTokenFile, "config": c.File(), "socket": filepath.Join(c.StateDir, config.AdminSocket),
	} {
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			out[name] = fact{Error: "missing"}
		case err != nil:
			out[name] = fact{Error: "can't be looked at"}
		default:
			out[name] = fact{Mode: info.Mode().String(), Bytes: info.Size(), AgeS: int64(a.Now().Sub(info.ModTime()).Seconds())}
		}
	}
	if sets, unreadable, err := backup.List(c.Backup.Dir); err == nil {
		list := []any{}
		for _, s := range sets {
			list = append(list, map[string]any{"backup": s.ID, "bytes": s.Bytes(), "schema": s.Schema, "version": s.Version})
		}
		out["backups"], out["unreadableBackups"] = list, unreadable
	}
	return out
}

// bundleMetrics asks the running gateway for its numbers.
func bundleMetrics(ctx context.Context, c *config.Config) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", c.Port), nil)
	if err != nil {
		return nil, err
	}
	h := &http.Transport{}
	defer h.CloseIdleConnections()
	resp, err := (&http.Client{Transport: h}).Do(r)
	if err != nil {
		return nil, errors.New("the gateway does not answer")
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.HasPrefix(raw, []byte("# HELP agentrelay_"))) {
		err = errors.New("what listens on the gateway's port is another program")
	}
	return raw, err
}

// logLines is how much of the log is packed.
const logLines = 2000

// bundleLog is the end of the log: of the file that is named, else of the service.
func (a *app) bundleLog(ctx context.Context, c *config.Config, file string, r *redactor) ([]byte, error) {
	if file == "" {
		file = filepath.Join(c.StateDir, "gateway.log")
	}
	text, err := tail(file)
	if errors.Is(err, fs.ErrNotExist) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if text, err = run(ctx, (systemdManager{}).logs(service{}, logLines, false)); err != nil {
			return nil, errors.New("there is no log file, and no journal: name one with --log")
		}
	}
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var out strings.Builder
	for _, l := range lines[max(0, len(lines)-logLines):] {
		if l != "" {
			out.WriteString(r.logLine(l) + "\n")
		}
	}
	return []byte(out.String()), nil
}

// tail is the end of a file.
func tail(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const most = 4 << 20
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "", err
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, most))
	return string(raw), err
}
