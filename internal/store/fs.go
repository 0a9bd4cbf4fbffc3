package store

import "fmt"

// NetworkFSError says that the state directory lies on a network file system.
type NetworkFSError struct {
	Dir string
	FS  string
}

func (e *NetworkFSError) Error() string {
	return fmt.Sprintf("the state directory %s is on a network file system (%s), where a crash or a second host can corrupt the database: move stateDir to a local disk, or set store.allowNetworkFilesystem to true and accept that", e.Dir, e.FS)
}
