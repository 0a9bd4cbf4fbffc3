package devices

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"agentrelay/internal/audit"
	"agentrelay/internal/devices/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

const (
	// alphabet of codes: 32 characters, of which no two look alike.
	alphabet = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
	// codeLength times 5 bits is 60 bits.
	codeLength = 12
	// maxWrong is how many wrong tries burn a code.
	maxWrong = 5
	// pairsPerMinute bounds tries of all addresses together: behind a proxy they
	// are one, and five wrong ones burn the code anyway.
	pairsPerMinute = 30
)

// pairing is the one code that is valid at a time. It is kept in memory alone, so
// that no file ever has one.
type pairing struct {
	now   func() time.Time
	tries *rate.Limiter

	mu       sync.Mutex
	code     string // "" is none
	expires  time.Time
	wrong    int
	replaces string // the device that may be paired anew
	taken    bool   // a pairing with it is under way
}

func newPairing(now func() time.Time) *pairing {
	return &pairing{now: now, tries: rate.NewLimiter(rate.Every(time.Minute/pairsPerMinute), 10)}
}

// current is the valid code, made anew if there is none or it is for something else.
func (p *pairing) current(random io.Reader, life time.Duration, replaces string) (Code, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.code == "" || p.taken || !p.now().Before(p.expires) || p.replaces != replaces {
		if err := p.mint(random, life, replaces); err != nil {
			return Code{}, err
		}
	}
	return Code{Code: shownCode(p.code), ExpiresAt: Time{p.expires}, Replaces: p.replaces}, nil
}

// mint makes a new code. p.mu is held.
func (p *pairing) mint(random io.Reader, life time.Duration, replaces string) error {
	raw := make([]byte, codeLength)
	if _, err := io.ReadFull(random, raw); err != nil {
		return fmt.Errorf("making a pairing code: %w", err)
	}
	for i := range raw {
		raw[i] = alphabet[raw[i]%32]
	}
	p.code, p.expires, p.wrong, p.replaces, p.taken = string(raw), p.now().Add(life).UTC().Truncate(time.Millisecond), 0, replaces, false
	return nil
}

// shownCode is a code in groups of four.
func shownCode(code string) string { return code[:4] + "-" + code[4:8] + "-" + code[8:] }

// plainCode is a code as a person may have typed it.
func plainCode(s string) string {
	return strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(s))
}

var (
	errThrottled = &wire.ProtocolError{Code: wire.CodeAuth, Msg: "throttled: too many pairing tries, wait a minute"}
	errWrongCode = &wire.ProtocolError{Code: wire.CodeAuth, Msg: "this pairing code is not valid: it is wrong, used, expired, or burnt by five wrong tries; the owner gets a new one with gateway devices pair"}
)

// claim takes the code for one pairing. Each try of a wrong one counts, also those at
// the same instant; release gives the code back if the pairing fails for another reason.
func (p *pairing) claim(code string) (replaces string, release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tries.AllowN(p.now(), 1) {
		return "", nil, errThrottled
	}
	if p.code == "" || p.taken || !p.now().Before(p.expires) {
		return "", nil, errWrongCode
	}
	got, want := sha256.Sum256([]byte(plainCode(code))), sha256.Sum256([]byte(p.code))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		if p.wrong++; p.wrong >= maxWrong {
			p.code = ""
		}
		return "", nil, errWrongCode
	}
	p.taken = true
	claimed := p.code
	return p.replaces, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.code == claimed {
			p.taken = false
		}
	}, nil
}

// used makes the code that follows one that was used.
func (p *pairing) used(random io.Reader, life time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken {
		p.code = ""
		_ = p.mint(random, life, "") // without one, the owner's next command makes it
	}
}

// PairIn says what a pairing code is for.
type PairIn struct {
	// Replace names a paired device that may be paired anew, which ends its old token;
	// "" is for a new name.
	Replace string `json:"replace"`
}

// PairingCode returns the code that is valid now, or makes one. A code pairs one
// device within ten minutes.
func (s *Service) PairingCode(ctx context.Context, in PairIn) (Code, error) {
	s.mu.Lock()
	started := s.started
	s.mu.Unlock()
	if !started {
		return Code{}, NeedsGateway.New("No gateway runs, and only a running one can pair a device.")
	}
	if in.Replace != "" {
		known, err := s.exists(ctx, in.Replace)
		if err != nil {
			return Code{}, err
		}
		if !known {
			return Code{}, UnknownDevice.New("No device of this name is paired, so there is nothing to replace.")
		}
	}
	code, err := s.pairs.current(s.rand, s.times.CodeLife, in.Replace)
	code.URL = s.url
	if err != nil {
		return Code{}, err
	}
	return code, store.Exec(ctx, s.store, func(tx *store.Tx) error {
		return audit.Record(tx, principal.Owner(""), "device.code", in.Replace, audit.OK)
	})
}

func (s *Service) exists(ctx context.Context, name string) (found bool, err error) {
	err = store.Read(ctx, s.store, func(r *store.Reader) error {
		return r.QueryRow(`SELECT EXISTS (SELECT 1 FROM devices WHERE name = ?)`, name).Scan(&found)
	})
	if err != nil {
		return false, fmt.Errorf("looking for a device: %w", err)
	}
	return found, nil
}

// pair makes a device of a pair frame and returns its token.
func (s *Service) pair(ctx context.Context, f wire.Frame) (token string, err error) {
	replaces, release, err := s.pairs.claim(f.Code)
	if err != nil {
		s.log.Warn("a pairing was refused", "device", f.Device, "throttled", errors.Is(err, errThrottled))
		return "", err
	}
	raw := make([]byte, 32)
	if _, err := io.ReadFull(s.rand, raw); err != nil {
		release()
		return "", fmt.Errorf("making a token: %w", err)
	}
	token = base64.RawURLEncoding.EncodeToString(raw)
	err = store.Exec(ctx, s.store, func(tx *store.Tx) error { return s.storeDevice(tx, f.Device, token, replaces) })
	if err != nil {
		release()
		return "", err
	}
	s.pairs.used(s.rand, s.times.CodeLife)
	s.log.Info("a device was paired", "device", f.Device, "replaced", replaces == f.Device)
	return token, nil
}

// storeDevice takes a name for a token. A name whose device never came back after
// its pairing is free: the answer to that pairing was lost.
func (s *Service) storeDevice(tx *store.Tx, name, token, replaces string) error {
	var connected sql.NullInt64
	err := tx.QueryRow(`SELECT connected_at FROM devices WHERE name = ?`, name).Scan(&connected)
	known := err == nil
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("looking for a device: %w", err)
	}
	if known && connected.Valid && replaces != name {
		return &wire.ProtocolError{Code: wire.CodeDeviceTaken, Msg: "a device of this name is paired: choose another name, or let the owner confirm it with gateway devices pair --replace " + name}
	}
	var n int
	if err := tx.QueryRow(`SELECT count(*) FROM devices`).Scan(&n); err != nil {
		return fmt.Errorf("counting devices: %w", err)
	}
	if !known && n >= MaxDevices {
		return &wire.ProtocolError{Code: wire.CodeAuth, Msg: "too many devices are paired: the owner can revoke one"}
	}
	if known {
		if err := s.drop(tx, name); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(`INSERT INTO devices (name, token_hash, paired_at) VALUES (?, ?, ?)`, name, hashToken(token), tx.Now().UnixMilli()); err != nil {
		return fmt.Errorf("storing a device: %w", err)
	}
	return audit.Record(tx, principal.Owner(""), "device.pair", name, audit.OK, "replaced", known)
}

func hashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// RevokeIn names a device.
type RevokeIn struct {
	Name string `json:"name"`
}

// RevokeOut is what a revocation ended.
type RevokeOut struct {
	Name  string `json:"name"`
	Calls int64  `json:"calls"` // that were open
}

// Revoke ends a device's token, its link and its open calls. The name is free then.
func (s *Service) Revoke(ctx context.Context, in RevokeIn) (RevokeOut, error) {
	return store.Write(ctx, s.store, func(tx *store.Tx) (RevokeOut, error) {
		out := RevokeOut{Name: in.Name}
		err := tx.QueryRow(`SELECT count(c.id) FROM devices d LEFT JOIN device_calls c ON c.device = d.name AND c.ended_at IS NULL WHERE d.name = ? GROUP BY d.name`, in.Name).Scan(&out.Calls)
		if errors.Is(err, sql.ErrNoRows) {
			return out, UnknownDevice.New("No device of this name is paired.")
		}
		if err != nil {
			return out, fmt.Errorf("looking for a device: %w", err)
		}
		if err := s.drop(tx, in.Name); err != nil {
			return out, err
		}
		return out, audit.Record(tx, principal.Owner(""), "device.revoke", in.Name, audit.OK, "calls", out.Calls)
	})
}

// drop removes a device with its open calls, and ends its link once that is stored.
func (s *Service) drop(tx *store.Tx, name string) error {
	open, err := openOf(tx, name)
	if err != nil {
		return err
	}
	for _, c := range open {
		if _, err := s.settle(tx, c.id, name, ending{code: Revoked.Code}); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(`DELETE FROM devices WHERE name = ?`, name); err != nil {
		return fmt.Errorf("removing a device: %w", err)
	}
	tx.AfterCommit(func() {
		s.mu.Lock()
		l := s.links[name]
		delete(s.links, name)
		s.mu.Unlock()
		if l != nil && s.begin() {
			go func() {
				defer s.wg.Done()
				l.revoked(open)
			}()
		}
	})
	return nil
}
