package transfers_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
)

// childEnv makes a run of this test binary a gateway that makes one call and
// kills itself at a step: "<step> <directory of openRig> <URL to import or ->".
const childEnv = "GATEWAY_TRANSFERS_TEST_CHILD"

// oneHost is a host that kills the process when it has been asked to place,
// before the answer ("answer") or in the middle of the content ("middle").
type oneHost struct {
	*host.Service
	kill func(step string)
}

// Host implements [transfers.Hosts].
func (h oneHost) Host(string) (transfers.Host, error) { return h, nil }

func (h oneHost) Place(ctx context.Context, in host.Placement, content io.Reader) (host.Placed, error) {
	h.kill("asked")
	out, err := h.Service.Place(ctx, in, &midway{content, h.kill})
	h.kill("answer")
	return out, err
}

type midway struct {
	io.Reader
	kill func(step string)
}

func (m *midway) Read(b []byte) (int, error) {
	n, err := m.Reader.Read(b)
	m.kill("middle")
	return n, err
}

func runChild(spec string) {
	f := strings.Fields(spec)
	step, dir, url := f[0], f[1], f[2]
	kill := func(at string) {
		if at == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(2)
		}
	}
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: dir + "/state"})
	must(err)
	h, err := newHost(dir)
	must(err)
	pool := x509.NewCertPool()
	if raw, err := os.ReadFile(dir + "/ca.pem"); err == nil {
		pool.AppendCertsFromPEM(raw)
	}
	svc, err := transfers.New(ctx, transfers.Options{Store: s, Hosts: oneHost{h, kill}, PublicBaseURL: "http://127.0.0.1", Safedial: safedial.Options{AllowLoopback: true, RootCAs: pool}})
	must(err)
	svc.Crash(kill)
	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "client-1", Permissions: principal.Full()}
	r := &rig{}
	var out transfers.Transfer
	if url == "-" {
		out, err = svc.ExportDirectFile(ctx, who, r.exportIn("f", "r1"))
	} else {
		out, err = svc.ImportDirectFile(ctx, who, r.importIn("f", "r1", url, oldContent))
	}
	must(err)
	fmt.Println(out.State)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// killed runs a child until it is killed, and returns what it had answered.
func killed(t *testing.T, dir, step, url string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+step+" "+dir+" "+url)
	out, err := cmd.Output()
	if err == nil || cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the child was not killed: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// A gateway that is killed at any step of an export has either no snapshot and
// says so, or one that works.
func TestExportKilledAtEachStep(t *testing.T) {
	for _, step := range []string{"copying", "copied", "ready", "-"} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(dir+"/project", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dir+"/project/f", []byte(newContent), 0o644); err != nil {
				t.Fatal(err)
			}
			answered := killed(t, dir, step, "-")
			r := openRig(t, dir, transfers.Options{})
			r.clock.ms.Store(r.get("r1").CreatedAt.UnixMilli() + 1000)
			got := r.get("r1")
			if answered != "" || step == "ready" {
				if r.is(got, transfers.Ready); answered != "" && answered != "ready" {
					t.Errorf("it had answered %s", answered)
				}
				if _, body := fetch(t, "GET", got.DownloadURL); body != newContent {
					t.Errorf("the link gives %q", body)
				}
				return
			}
			r.is(got, transfers.StateInterrupted, "transfer_interrupted")
			if again := r.export("f", "r1"); again.State != transfers.StateInterrupted || !again.Duplicate {
				t.Errorf("the repeat is %+v", again)
			}
			r.nothingSpooled()
			r.is(r.export("f", "r2"), transfers.Ready)
		})
	}
}

// A gateway that is killed at any step of an import has placed the file and says
// so, or has not and says so.
func TestImportKilledAtEachStep(t *testing.T) {
	s, o := source(t, serveNew)
	for _, step := range []string{"downloading", "downloaded", "placing", "asked", "middle", "answer", "placed", "-"} {
		for _, later := range []bool{false, true} { // something else writes before the next start
			t.Run(fmt.Sprint(step, later), func(t *testing.T) {
				dir := t.TempDir()
				if err := os.Mkdir(dir+"/project", 0o755); err != nil {
					t.Fatal(err)
				}
				ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
				for name, content := range map[string]string{"/project/f": oldContent, "/ca.pem": string(ca)} {
					if err := os.WriteFile(dir+name, []byte(content), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				answered := killed(t, dir, step, s.URL)
				raw, err := os.ReadFile(dir + "/project/f")
				if err != nil {
					t.Fatal(err)
				}
				placed := string(raw) == newContent
				if !placed && string(raw) != oldContent {
					t.Fatalf("the file is torn: %q", raw)
				}
				if later {
					if err := os.WriteFile(dir+"/project/f", []byte("theirs"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				r := openRig(t, dir, o)
				want, code := transfers.StateInterrupted, "transfer_interrupted"
				if placed {
					want, code = transfers.Completed, ""
				}
				r.is(r.get("r1"), want, code)
				if answered != "" && !placed {
					t.Errorf("it had answered %s", answered)
				}
				again := r.importFile(r.importIn("f", "r1", s.URL, oldContent))
				if r.is(again, want, code); r.host.places.Load() != 0 {
					t.Error("it was placed again")
				}
				if later && r.file("f") != "theirs" {
					t.Errorf("what was written later is lost: %q", r.file("f"))
				}
				if entries, err := os.ReadDir(dir + "/project"); err != nil || len(entries) != 1 {
					t.Errorf("the project has %v, %v", entries, err)
				}
				r.nothingSpooled()
			})
		}
	}
}
