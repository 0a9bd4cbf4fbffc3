package files

// OnStep calls f at each step of a write at which a crash could happen.
func (s *Service) OnStep(f func(step string)) { s.crash = f }
