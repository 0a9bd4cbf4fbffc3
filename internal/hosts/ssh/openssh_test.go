package ssh_test

import (
	"testing"

	"agentrelay/internal/e2e/sshd"
)

func TestAgent(t *testing.T) {
	c, _ := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box")
	echo(t, connect(t, h))
}
