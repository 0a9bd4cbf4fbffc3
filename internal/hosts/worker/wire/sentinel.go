package wire

import "agentrelay/internal/direct/transfers"

// sentinels are the errors of placements that mean something to the gateway, by
// the word that goes over the wire.
func sentinels() map[string]error {
	return map[string]error{"placement_withdrawn": transfers.ErrWithdrawn, "placement_unsettled": transfers.ErrUnsettled, "placement_busy": transfers.ErrBusy}
}
