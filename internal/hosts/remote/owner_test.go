package remote

import (
	"os"
	"testing"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker"
)

// TestCheckEnds also where what is installed does not.
func TestCheckEnds(t *testing.T) {
	dir := t.TempDir() + "/state"
	if err := os.MkdirAll(dir+"/bin", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(worker.Program(dir), []byte("#!/bin/sh\nexec sleep 30\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, config.Host{RemoteStateDir: dir}, sshd.Options{})
	h.lookBudget = 2 * time.Second
	steps := h.Check(t.Context())
	for _, s := range steps {
		if s.Name == "program" && s.State == ssh.Fail {
			return
		}
	}
	t.Errorf("%+v", steps)
}
