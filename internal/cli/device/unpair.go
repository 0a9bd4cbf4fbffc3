package device

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/device/state"
)

// stopTime is how long a running device may take to end.
const stopTime = 10 * time.Second

func (a *app) unpairCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unpair",
		Short: "Stop the running device and forget its token",
		Args:  exact(),
		RunE: func(*cobra.Command, []string) error {
			s, err := a.state()
			if err != nil {
				return err
			}
			id, known := s.Identity()
			if errors.Is(known, state.ErrNotPaired) {
				return known
			}
			lock, err := stopped(s)
			if err != nil {
				return err
			}
			defer lock.Release()
			if err := s.Forget(); err != nil {
				return err
			}
			name := id.Device
			if name == "" {
				name = "NAME" // token.json was damaged
			}
			fmt.Fprintf(a.Stdout, "The token is forgotten here. \"gateway devices revoke %s\" ends it at the relay.\n", name)
			return nil
		},
	}
}

// stopped ends the running device and takes its place.
func stopped(s state.Dir) (*state.Lock, error) {
	if _, err := s.Signal(syscall.SIGTERM); err != nil {
		return nil, err
	}
	for until := time.Now().Add(stopTime); ; time.Sleep(20 * time.Millisecond) {
		lock, err := s.Lock()
		if err == nil || time.Now().After(until) {
			return lock, err
		}
	}
}
