package device

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/device"
	"agentrelay/internal/device/plugins"
	"agentrelay/internal/device/state"
)

// maxSocketPath is what all systems take.
const maxSocketPath = 103

// statusTime bounds an exchange over the socket.
const statusTime = 5 * time.Second

// serveStatus answers each connection with one line. Only the user can connect: the
// directory is closed to others.
func serveStatus(s state.Dir, d *device.Device) (stop func(), err error) {
	if len(s.Socket()) > maxSocketPath {
		return nil, fmt.Errorf("the path of its socket has more than %d bytes", maxSocketPath)
	}
	if err := os.Remove(s.Socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", s.Socket())
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.Socket(), 0o600); err != nil {
		l.Close()
		return nil, err
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(statusTime))
				st := d.Status()
				st.PID = os.Getpid()
				_ = json.NewEncoder(c).Encode(st) // whoever asked has gone
			})
		}
	})
	return func() {
		l.Close()
		all.Wait()
	}, nil
}

// askStatus asks the running device.
func askStatus(s state.Dir) (device.Status, error) {
	var st device.Status
	c, err := net.DialTimeout("unix", s.Socket(), statusTime)
	if err != nil {
		return st, fmt.Errorf("the running device does not answer: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(statusTime))
	if err := json.NewDecoder(c).Decode(&st); err != nil {
		return st, fmt.Errorf("the running device was not understood: %w", err)
	}
	return st, nil
}

// statusOut is the JSON of the status command.
type statusOut struct {
	Running bool           `json:"running"`
	Device  string         `json:"device"`
	Relay   string         `json:"relay"`
	Live    *device.Status `json:"live,omitempty"`
	// Reachable is measured when nothing runs.
	Reachable   *bool             `json:"reachable,omitempty"`
	Unreachable string            `json:"unreachable,omitempty"`
	RoundTripMs int64             `json:"roundTripMs,omitempty"`
	Tools       []string          `json:"tools"`
	Problems    []plugins.Problem `json:"problems"`
	PluginRoot  string            `json:"pluginRoot"`
	AutoAllow   []string          `json:"autoallow"`
	TimeoutMs   int64             `json:"approvalTimeoutMs"`
	PolicyError string            `json:"policyError,omitempty"`
}

func (a *app) statusCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "status",
		Short: "Say how this device is: relay, plugins, policy",
		Long: `Asks the running device how it is. When none runs, it tries whether the relay can be reached and reads
the plugins itself. It ends with exit code 1 when the device does not run or is not connected.`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := a.readStatus(cmd)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(out)
			} else {
				err = a.printStatus(out)
			}
			switch {
			case err != nil:
				return err
			case !out.Running:
				return failed(ExitFailed, `start it with "device run"`, "the device does not run")
			case out.Live.Link.State != "connected":
				return failed(ExitFailed, "it tries again by itself", "the device is not connected")
			}
			return nil
		},
	})
}

func (a *app) readStatus(cmd *cobra.Command) (statusOut, error) {
	s, err := a.state()
	if err != nil {
		return statusOut{}, err
	}
	id, err := s.Identity()
	if err != nil {
		return statusOut{}, err
	}
	out := statusOut{Device: id.Device, Relay: id.RelayURL, AutoAllow: []string{}}
	file, err := a.policy()
	if err != nil {
		return out, err
	}
	p, err := file.Read()
	if err != nil {
		out.PolicyError = err.Error()
	}
	out.AutoAllow, out.TimeoutMs = slices.Concat(out.AutoAllow, p.AutoAllow), p.Timeout.Milliseconds()
	root, err := a.pluginsIn(s, id.Device, ".")
	if err != nil {
		return out, err
	}
	out.PluginRoot = root.Dir
	if _, out.Running = s.Running(); out.Running {
		live, err := askStatus(s)
		out.Live, out.Tools, out.Problems = &live, live.Tools, live.Problems
		return out, err
	}
	took, err := a.Dial.Probe(cmd.Context(), id)
	reachable := err == nil
	out.Reachable, out.RoundTripMs = &reachable, took.Milliseconds()
	if err != nil {
		out.Unreachable = err.Error()
	}
	set := root.Scan(cmd.Context())
	defer set.Close()
	out.Tools, out.Problems = []string{}, slices.Concat([]plugins.Problem{}, set.Problems)
	for _, t := range set.Tools {
		out.Tools = append(out.Tools, t.Name)
	}
	return out, nil
}

func (a *app) printStatus(out statusOut) error {
	lines := [][2]string{{"Device", out.Device}, {"Relay", out.Relay}}
	switch {
	case out.Running:
		lines = append(lines, liveLines(out.Live)...)
	case *out.Reachable:
		lines = append(lines, [2]string{"Link", fmt.Sprintf("the device does not run; the relay can be reached (%d ms)", out.RoundTripMs)})
	default:
		lines = append(lines, [2]string{"Link", "the device does not run; " + out.Unreachable})
	}
	tools := strings.Join(out.Tools, ", ")
	if tools == "" {
		tools = "none in " + out.PluginRoot
	}
	lines = append(lines, [2]string{"Tools", tools})
	for _, p := range out.Problems {
		lines = append(lines, [2]string{"Skipped", strings.TrimPrefix(p.Plugin+": "+p.Why, ": ")})
	}
	if out.PolicyError != "" {
		lines = append(lines, [2]string{"Policy", out.PolicyError})
	}
	lines = append(lines, [2]string{"Policy", policyLine(out)})
	for _, l := range lines {
		fmt.Fprintf(a.Stdout, "%-8s %s\n", l[0], clean(l[1]))
	}
	return nil
}

func policyLine(out statusOut) string {
	always := "nothing is allowed for good"
	if len(out.AutoAllow) > 0 {
		always = "always allowed: " + strings.Join(out.AutoAllow, ", ")
	}
	line := always + fmt.Sprintf("; a question waits %v", time.Duration(out.TimeoutMs)*time.Millisecond)
	if out.Live == nil {
		return line
	}
	switch {
	case out.Live.Yolo:
		line = "everything runs without asking (--yolo); " + line
	case !out.Live.Human:
		line += "; nobody can be asked, the rest is denied"
	}
	if len(out.Live.Allow) > 0 {
		line += "; --allow " + strings.Join(out.Live.Allow, ",")
	}
	return line
}

func liveLines(s *device.Status) [][2]string {
	age := func(t time.Time) string { return s.Now.Sub(t).Round(time.Second).String() }
	link := s.Link.State + " for " + age(s.Link.Since)
	switch s.Link.State {
	case "connected":
		link += ", last heard " + age(s.Link.LastHeard) + " ago"
		if s.Link.RoundTrip > 0 {
			link += fmt.Sprintf(", round trip %d ms", s.Link.RoundTrip.Milliseconds())
		}
	case "waiting":
		link += ", next try in " + s.Link.NextTry.Sub(s.Now).Round(time.Second).String()
	}
	if s.Link.Reason != "" {
		link += ": " + s.Link.Reason
	}
	lines := [][2]string{{"Link", link}, {"Process", fmt.Sprintf("%d, started %s ago", s.PID, age(s.Started))}}
	for _, c := range s.Calls {
		what := map[string]string{"approval": "waits for an answer", "running": "runs"}[c.Phase]
		if what == "" {
			what = "has come"
		}
		lines = append(lines, [2]string{"Call", fmt.Sprintf("%s %s, since %s, %s left", c.Tool, what, age(c.Since), c.Until.Sub(s.Now).Round(time.Second))})
	}
	if s.Kept > 0 {
		lines = append(lines, [2]string{"Results", fmt.Sprintf("%d wait for the relay", s.Kept)})
	}
	return lines
}

// clean takes what a terminal would act on out of a text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x206f || r == 0xfeff {
			return '?'
		}
		return r
	}, s)
}
