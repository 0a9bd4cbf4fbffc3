package commands

// Running is how many commands run on this host, or ended since somebody last
// asked. It is for numbers; nothing is settled by it.
func (s *Service) Running() (int, error) {
	active, err := s.root.Active()
	return len(active), err
}
