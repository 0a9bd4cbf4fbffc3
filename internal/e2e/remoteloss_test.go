package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// round is the changes that a loss falls upon, and the calls beside them.
type round struct {
	m                      *far
	n                      string
	write, edit, run, read <-chan ended
}

func (m *far) prepare(n string) *round {
	if err := os.WriteFile(filepath.Join(m.dir, "edit-"+n), []byte("one two\n"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return &round{m: m, n: n}
}

func (r *round) writes() object {
	return object{"path": "write-" + r.n, "content": "heron " + r.n, "expectedSha256": nil}
}

func (r *round) edits() object {
	return object{"path": "edit-" + r.n, "oldText": "two", "newText": "two two", "expectedSha256": "2dbb4a503f1515636b6a54e7f5b1a8ccfddcb62f0571c8b57a2879c360d00346"}
}

func (r *round) runs() object {
	return object{"requestId": "run-" + r.n, "argv": lines("run-"+r.n, "0.3"), "waitMs": 20000}
}

func (r *round) begin() {
	r.write, r.edit = r.m.begin("write_direct_file", r.writes()), r.m.begin("edit_direct_file", r.edits())
	r.run, r.read = r.m.begin("run_direct_command", r.runs()), r.m.begin("read_direct_file", object{"path": "edit-" + r.n})
}

// effects waits until all of it is done on the machine.
func (r *round) effects() {
	r.m.t.Helper()
	eventually(r.m.t, "what was asked for", func() bool {
		_, written := r.m.has("write-" + r.n)
		edited, _ := r.m.has("edit-" + r.n)
		_, ran := r.m.has("run-" + r.n)
		return written && edited == "one two two\n" && ran
	})
}

// placing waits until an import comes into its place.
func (m *far) placing(name string) {
	m.t.Helper()
	eventually(m.t, "the import", func() bool {
		left, _ := filepath.Glob(filepath.Join(m.dir, ".agent-relay-*"))
		_, there := m.has(name)
		return there || len(left) > 0
	})
}

// large makes a file that takes a while on its way.
func (m *far) large() {
	if err := os.WriteFile(filepath.Join(m.dir, "large"), []byte(strings.Repeat("heron 3\n", exportSize/8)), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// notDone checks answers to what never arrived, and that it can be done since.
func (r *round) notDone() {
	m := r.m
	m.t.Helper()
	for what, c := range map[string]<-chan ended{"write": r.write, "edit": r.edit, "read": r.read} {
		if e := <-c; e.code != "host_unavailable" {
			m.t.Errorf("%s: the %s %s ended with %v, %v", m.id, what, r.n, e.out, e.err)
		}
	}
	ran := <-r.run
	if failed, _ := ran.out["error"].(map[string]any); ran.out["state"] != "failed" || failed["code"] != "not_started" || ran.out["duplicate"] != false {
		m.t.Errorf("%s: the command %s ended as %v, %v", m.id, r.n, ran.out, ran.err)
	}
	if _, there := m.has("write-" + r.n); there {
		m.t.Errorf("%s: it was written", m.id)
	}
	if got, _ := m.has("edit-" + r.n); got != "one two\n" {
		m.t.Errorf("%s: it was edited: %q", m.id, got)
	}
	if again := m.do("run_direct_command", r.runs()); again.out["state"] != "failed" || again.out["duplicate"] != true {
		m.t.Errorf("%s: repeated, the command is %v, %v", m.id, again.out, again.err)
	}
	m.holds("run-"+r.n, "")
	r.repeated(false)
}

// done checks answers to what was done before the loss.
func (r *round) done() {
	m := r.m
	m.t.Helper()
	for what, c := range map[string]<-chan ended{"write": r.write, "edit": r.edit, "run": r.run} {
		if e := <-c; e.err != nil || e.out["duplicate"] == true || what == "run" && e.out["state"] != "exited" {
			m.t.Errorf("%s: the %s %s ended with %v, %v", m.id, what, r.n, e.out, e.err)
		}
	}
	if e := <-r.read; e.code != "host_unavailable" {
		m.t.Errorf("%s: the read ended with %v, %v", m.id, e.out, e.err)
	}
	r.repeated(true)
	r.ranOnce()
}

// repeated makes the write and the edit once more.
func (r *round) repeated(duplicate bool) {
	m := r.m
	m.t.Helper()
	for tool, in := range map[string]object{"write_direct_file": r.writes(), "edit_direct_file": r.edits()} {
		e := m.do(tool, in)
		if was, _ := e.out["duplicate"].(bool); e.err != nil || was != duplicate {
			m.t.Errorf("%s: repeated, %s answers %v, %v", m.id, tool, e.out, e.err)
		}
	}
	m.holds("write-"+r.n, "heron "+r.n)
	m.holds("edit-"+r.n, "one two two\n")
}

// ranOnce checks that a command that began has run to its end, once.
func (r *round) ranOnce() {
	m := r.m
	m.t.Helper()
	var e ended
	eventually(m.t, "the end of the command", func() bool {
		e = m.do("run_direct_command", r.runs())
		return e.out["state"] == "exited"
	})
	if e.out["duplicate"] != true {
		m.t.Errorf("%s: repeated, the command is %v", m.id, e.out)
	}
	m.holds("run-"+r.n, "begun\nended\n")
}

// TestLostConnections loses the connections to machines while everything that
// goes over one is under way. Each call must end as it really ended, once.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	_, running, machines := newLossRig(t, "killed", "restarted", "broken", "hole")
	lose := map[string]func(*far){
		"killed":    func(m *far) { m.server.KillSessions() },
		"restarted": func(m *far) { m.server.Stop(); m.server.Start() },
		"broken":    func(*far) {},
	}
	t.Run("each", func(t *testing.T) {
		for _, m := range machines {
			t.Run(m.id, func(t *testing.T) {
				t.Parallel()
				m.with(t)
				if m.id == "hole" {
					m.swallowed()
					return
				}
				lost := func() {
					lose[m.id](m)
					m.proxy.Cut()
					m.proxy.Restore()
				}
				m.beforeItArrives(lost)
				m.afterItWasDone(lost)
				m.inTheMiddle(lost)
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, m := range machines {
		m.with(t).onRecord()
	}
	machines[0].offline()
	if log := running.Output(); strings.Contains(log, "heron 1") || strings.Contains(log, "Mail of") {
		t.Error("the log has what was written")
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}

// beforeItArrives loses what was sent and is on its way. It may arrive when the
// gateway has long been answered that it was not done.
func (m *far) beforeItArrives(lost func()) {
	r := m.prepare("1")
	carried, let := m.importing("import-1")
	m.server.Freeze()
	let()
	r.begin()
	exported := m.begin("export_direct_file", object{"path": "edit-1", "requestId": "export-1"})
	id, stored := m.sending()
	m.recorded("write-1", "edit-1", "run-1")
	lost()
	r.notDone()
	if e := <-exported; e.code != "host_unavailable" {
		m.t.Errorf("%s: the export ended with %v, %v", m.id, e.out, e.err)
	}
	if e := m.do("export_direct_file", object{"path": "edit-1", "requestId": "export-1"}); e.out["state"] != "ready" || string(download(m.t, e.out["downloadUrl"])) != "one two two\n" {
		m.t.Errorf("%s: repeated, the export is %v, %v", m.id, e.out, e.err)
	}
	<-carried
	m.settledImport("import-1")
	m.server.Thaw() // what waited there arrives
	m.t.Logf("%s: the message took %d sends", m.id, <-stored)
	m.received(id)
}

// afterItWasDone loses the answers.
func (m *far) afterItWasDone(lost func()) {
	m.reached()
	r := m.prepare("2")
	carried, let := m.importing("import-2")
	let()
	m.placing("import-2")
	m.proxy.Mute()
	r.begin()
	id, stored := m.sending()
	r.effects()
	lost()
	r.done()
	<-carried
	m.settledImport("import-2")
	m.t.Logf("%s: the message took %d sends", m.id, <-stored)
	m.received(id)
}

// inTheMiddle loses the connection while a file is on its way, and while somebody
// waits for a command.
func (m *far) inTheMiddle(lost func()) {
	m.reached()
	m.large()
	if e := m.do("run_direct_command", object{"requestId": "run-3", "argv": lines("run-3", "2")}); e.err != nil {
		m.t.Fatal(e.err)
	}
	waits := m.begin("read_direct_command", object{"requestId": "run-3", "waitMs": 20000})
	exported := m.begin("export_direct_file", object{"path": "large", "requestId": "export-3"})
	eventually(m.t, "the export", func() bool {
		return m.do("get_direct_transfer", object{"requestId": "export-3"}).err == nil
	})
	id, stored := m.sending()
	lost()
	if e := <-waits; e.err != nil && e.code != "host_unavailable" {
		m.t.Errorf("%s: waiting ended with %v", m.id, e.err)
	}
	<-exported
	m.settledExport("export-3", "large")
	m.reached()
	m.t.Logf("%s: the message took %d sends", m.id, <-stored)
	m.received(id)
	eventually(m.t, "the end of the command", func() bool {
		return m.do("read_direct_command", object{"requestId": "run-3", "waitMs": 20000}).out["state"] == "exited"
	})
	m.holds("run-3", "begun\nended\n")
}

// swallowed has a network carry nothing and say nothing, until the gateway notices.
func (m *far) swallowed() {
	r := m.prepare("4")
	carried, let := m.importing("import-4")
	m.proxy.Blackhole()
	began := time.Now()
	let()
	r.begin()
	id, stored := m.sending()
	e := <-r.read
	took := time.Since(began)
	if e.code != "host_unavailable" || !strings.Contains(e.err.Error(), "has stopped answering, since ") || took > 45*time.Second {
		m.t.Errorf("after %v the read ended with %v, %v", took, e.out, e.err)
	}
	m.t.Logf("noticed after %v", took)
	host := m.listed()
	if reason, _ := host["reason"].(string); host["available"] != false || !strings.Contains(reason, "stopped answering") || !strings.Contains(reason, "(degraded since 2") {
		m.t.Errorf("list_hosts says %v", host)
	}
	m.proxy.Restore() // and all arrives
	for what, c := range map[string]<-chan ended{"write": r.write, "edit": r.edit, "run": r.run} {
		if e := <-c; e.err != nil || e.out["duplicate"] == true {
			m.t.Errorf("the %s ended with %v, %v", what, e.out, e.err)
		}
	}
	<-carried
	m.settledImport("import-4")
	<-stored
	m.received(id)
	m.reached()
	r.repeated(true)
	r.ranOnce()
}

// onRecord checks that each change is on record as it was answered, and each
// import once.
func (m *far) onRecord() {
	m.t.Helper()
	for _, check := range m.later {
		check(m.t)
	}
	got := map[string]map[string]int{}
	imports := map[string]int{}
	for _, e := range m.rig.auditLog(m.id) {
		key := e.Action + " " + e.Subject
		if m.calls[key] != nil {
			if got[key] == nil {
				got[key] = map[string]int{}
			}
			got[key][e.Outcome]++
		}
		if e.Action == "file.import" {
			imports[e.Subject]++
		}
	}
	for key, outcomes := range m.calls {
		want := map[string]int{}
		for _, o := range outcomes {
			want[o]++
		}
		if fmt.Sprint(want) != fmt.Sprint(got[key]) {
			m.t.Errorf("%s: %s was answered %v and is on record as %v", m.id, key, want, got[key])
		}
	}
	for path, n := range imports {
		if n != 1 {
			m.t.Errorf("%s: the import of %s is on record %d times", m.id, path, n)
		}
	}
}

// offline checks what is known of a machine that is gone.
func (m *far) offline() {
	m.server.Stop()
	m.proxy.Cut()
	eventually(m.t, "the loss", func() bool { return m.listed()["available"] == false })
	if reason := fmt.Sprint(m.listed()["reason"]); !strings.Contains(reason, " since 2") {
		m.t.Errorf("list_hosts says %s", reason)
	}
	eventually(m.t, "the refusal", func() bool {
		e := m.do("read_direct_file", object{"path": "edit-1"})
		return e.code == "host_unavailable" && strings.Contains(e.err.Error(), "since 2")
	})
	held := m.do("get_direct_transfer", object{"requestId": "export-1"})
	if held.err != nil || string(download(m.t, held.out["downloadUrl"])) != "one two two\n" {
		m.t.Errorf("of what the gateway holds: %v, %v", held.out, held.err)
	}
	if peers := fmt.Sprint(m.chat.call("list_peers", nil)); !strings.Contains(peers, m.peer()) {
		m.t.Errorf("the directory is %s", peers)
	}
}

// TestGatewayKilledOverSSH kills the gateway while a machine works for it: before
// what it sent has arrived, before answers have, and in the middle of files.
func TestGatewayKilledOverSSH(t *testing.T) {
	t.Parallel()
	r, running, machines := newLossRig(t, "far")
	m := machines[0].with(t)
	restart := func() {
		running.Kill()
		running = r.home.Serve()
		m.with(t).reached()
	}
	m.killedBeforeItArrives(restart)
	m.killedAfterItWasDone(restart)
	m.large()
	m.begin("export_direct_file", object{"path": "large", "requestId": "export-3"})
	eventually(t, "the export", func() bool {
		return m.do("get_direct_transfer", object{"requestId": "export-3"}).err == nil
	})
	restart()
	m.settledExport("export-3", "large")
	for _, check := range m.later {
		check(t)
	}
	if code := running.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
}

// killedBeforeItArrives has a start wait on the old connection until the next
// gateway has asked what became of it.
func (m *far) killedBeforeItArrives(restart func()) {
	r := m.prepare("1")
	_, let := m.importing("import-1")
	m.proxy.Strand()
	let()
	r.begin()
	id, stored := m.sending()
	m.recorded("write-1", "edit-1", "run-1")
	restart()
	if e := m.do("read_direct_command", object{"requestId": "run-1"}); e.out["state"] != "failed" {
		m.t.Errorf("of a command that never arrived the gateway says %v, %v", e.out, e.err)
	}
	m.proxy.Restore() // and it arrives
	if again := m.do("run_direct_command", r.runs()); again.out["state"] != "failed" || again.out["duplicate"] != true {
		m.t.Errorf("repeated, it is %v, %v", again.out, again.err)
	}
	m.holds("run-1", "")
	r.repeated(false)
	m.settledImport("import-1")
	<-stored
	m.received(id)
}

// killedAfterItWasDone keeps the answers from the gateway that asked.
func (m *far) killedAfterItWasDone(restart func()) {
	r := m.prepare("2")
	_, let := m.importing("import-2")
	let()
	m.placing("import-2")
	m.proxy.Mute()
	r.begin()
	id, stored := m.sending()
	r.effects()
	m.proxy.Strand()
	restart()
	m.proxy.Restore()
	r.repeated(true)
	r.ranOnce()
	m.settledImport("import-2")
	<-stored
	m.received(id)
}
