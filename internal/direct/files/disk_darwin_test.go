package files_test

import (
	"testing"

	"agentrelay/internal/direct"
	"agentrelay/internal/fault"
)

// smallDisk is a project in which nothing can be made, and the refusal that a
// write in it gets.
func smallDisk(t *testing.T) (*bench, fault.Kind) { return newBench(t), direct.PermissionDenied }
