package files

import (
	"context"
	"os"
)

// OnStep calls f at each step of a write at which a crash could happen.
func (s *Service) OnStep(f func(step string)) { s.crash = f }

// ScannedBytes is how much of f a search for text reads that may read limit
// bytes.
func ScannedBytes(ctx context.Context, f *os.File, text string, limit int64) (int64, error) {
	p, err := parsePattern(text, false, false)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	s := scanner{p: p, max: 1, buf: make([]byte, scanBuffer)}
	out, err := s.file(ctx, f, info.Size(), position{}, limit)
	return out.bytes, err
}
