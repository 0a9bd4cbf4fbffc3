package mailbox

// Waiting returns how many calls wait for mail now.
func (s *Service) Waiting() int {
	s.waiters.mu.Lock()
	defer s.waiters.mu.Unlock()
	return s.waiters.total
}

// The bounds of waits, and the step of the owner's scans.
const (
	MaxWaits        = maxWaits
	MaxWaitsPerPeer = maxWaitsPerPeer
	ScanRows        = scanRows
)

// Queries is every statement that reads more than one row, or a row by
// something else than its row id, with as many arguments as it takes.
var Queries = map[string]string{
	"peer":         peerByID,
	"agent":        peerOfAgent,
	"active peers": listActivePeers,
	"all peers":    listEveryPeer,
	"owners":       peersOfOwners,
	"message":      messageByKey,
	"unprocessed":  listUnprocessed,
	"inbox":        listAll,
	"thread":       listThread,
	"backwards":    messagesBackwards,
	"forwards":     messagesForwards,
	"purge":        purgeMessage,
	"budget":       spendBudget,
}
