package transfers

// Crash makes step the place where a test acts, or ends the process.
func (s *Service) Crash(at func(step string)) { s.crash = at }

// Running returns how many downloads of exports run now.
func (s *Service) Running() int {
	s.streams.mu.Lock()
	defer s.streams.mu.Unlock()
	return s.streams.all
}

// SpoolUsed returns how many bytes of the spool are promised.
func (s *Service) SpoolUsed() int64 {
	s.spool.mu.Lock()
	defer s.spool.mu.Unlock()
	return s.spool.used
}

// SpoolDir is the name of the spool in the state directory.
const SpoolDir = spoolDir

// Covered returns what is left to send of size bytes after each interval was
// sent, for tests of coverages.
func Covered(size int64, intervals ...[2]int64) (covered bool, kept int) {
	var c coverage
	for _, i := range intervals {
		c = c.with(i[0], i[1])
	}
	return c.covers(size), len(c)
}

// DownloadName and ContentDisposition are how names are shown to receivers.
var (
	DownloadName       = downloadName
	ContentDisposition = contentDisposition
)

// Queries is every statement that reads more than one row, or a row by
// something else than its row id, with as many arguments as it takes.
var Queries = map[string]string{
	"key": byKey, "ticket": byTicket, "all": listAll, "owner": listOwner, "limit": countSpooled,
}
