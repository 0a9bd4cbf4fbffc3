package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	workerwire "agentrelay/internal/hosts/worker/wire"
)

// farCommands compares the time from a call to a command's first output with ssh,
// to which a connection is lent that is there already. The gateway's command goes
// on when the connection is lost; that of ssh ends.
func farCommands(ctx context.Context, b *bench) ([]row, error) {
	w, m, err := farWorkspace(ctx, b)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	defer w.close()
	stopMaster, err := m.master()
	if err != nil {
		return nil, err
	}
	defer stopMaster()
	s, err := inTurns(b.rounds,
		repeated(commandsARound, func() error { return w.echo(ctx, far) }),
		repeated(commandsARound, func() error {
			out, err := m.ssh("echo", "hi").Output()
			if err == nil && string(out) != "hi\n" {
				err = errors.New("echo printed something else")
			}
			return err
		}))
	if err != nil {
		return nil, err
	}
	rows := []row{ratioed("run_direct_command on an SSH host, call to first output", milli(s.median(0)), "ssh host echo, over a shared connection: "+milli(s.median(1)), s.ratio(0, 1))}
	supervisor, err := w.supervisor(ctx, m)
	return append(rows, supervisor), err
}

// supervisor looks at the process that runs a command on the machine.
func (w *workspace) supervisor(ctx context.Context, m *farMachine) (row, error) {
	var began []float64
	var out commands.RunDirectCommandOut
	for range commandsARound {
		err := w.session.Call(ctx, "run_direct_command", map[string]any{
			"hostId": far, "projectId": project, "requestId": uuid.NewString(), "argv": []string{"sleep", "2"},
		}, &out)
		for err == nil && out.StartedAt.IsZero() {
			var now commands.ReadDirectCommandOut
			err = w.session.Call(ctx, "read_direct_command", map[string]any{"hostId": far, "commandId": out.CommandID}, &now)
			out.StartedAt = now.StartedAt
		}
		if err != nil {
			return row{}, err
		}
		began = append(began, out.StartedAt.Time.Sub(out.CreatedAt.Time).Seconds())
	}
	rss, err := memoryOf(" supervise ", m.dir, out.CommandID)
	if err != nil {
		return row{}, err
	}
	took := percentile(began, 50)
	return row{name: "peer-agent supervise: from the command's record to its start, RSS", measured: milli(took) + ", " + megabytes(rss)}.atMost(took, 0.05, "50 ms"), nil
}

// memoryOf is the memory of the one process whose command line has all of words,
// in bytes.
func memoryOf(words ...string) (float64, error) {
	out, err := exec.Command("ps", "-A", "-o", "rss=,args=").Output()
	if err != nil {
		return 0, fmt.Errorf("asking ps for memory: %w", err)
	}
lines:
	for line := range strings.Lines(string(out)) {
		for _, word := range words {
			if !strings.Contains(line, word) {
				continue lines
			}
		}
		kib, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
		return kib * 1024, err
	}
	return 0, fmt.Errorf("no process has %q in its command line", words)
}

// helpers starts workers as a gateway does, with no SSH between the two.
func helpers(_ context.Context, b *bench) ([]row, error) {
	dir, err := os.MkdirTemp(b.dir, "worker")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(filepath.Dir(b.gateway), "peer-agent")
	var rss float64
	s, err := inTurns(b.rounds,
		repeated(commandsARound, func() (err error) { rss, err = greet(path, dir); return err }),
		repeated(commandsARound, plainEcho))
	if err != nil {
		return nil, err
	}
	return []row{ratioed("peer-agent worker: start to its first line, RSS then", milli(s.median(0))+", "+megabytes(rss), "fork and exec: "+milli(s.median(1)), s.ratio(0, 1)).
		atMost(s.median(0), 0.05, "50 ms")}, nil
}

// greet starts a worker, hears its first line, and has it end.
func greet(path, dir string) (rss float64, err error) {
	cmd := exec.Command(path, "worker")
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer cmd.Wait()
	defer in.Close()
	hello := workerwire.Hello{Protocol: workerwire.Protocol, Nonce: "0123456789abcdef01234567", StateDir: filepath.Join(dir, "state"), Settings: workerwire.Settings{Policy: direct.Policy{HostID: far}}}
	if err := workerwire.WriteHello(in, hello); err != nil {
		return 0, err
	}
	var reply workerwire.Reply
	if err := workerwire.ReadAnswer(bufio.NewReader(out), hello.Nonce, &reply); err != nil {
		return 0, err
	}
	if reply.Error != nil {
		return 0, fmt.Errorf("a worker does not start: %+v", *reply.Error)
	}
	return (&program{cmd: cmd}).rss()
}
