package owner

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"agentrelay/internal/store"
)

// Pauses after wrong tries. The first few cost nothing, since people mistype;
// then each doubles the pause.
//
// The pause of an address keeps one guesser slow. The pause of all addresses
// together keeps many slow, and is short, because it meets the owner as well.
// An address from which the owner signed in before is spared it, so that
// guessers who fill every gap can't keep the owner out.
var (
	perAddress = rule{free: 2, max: 15 * time.Minute, forget: 24 * time.Hour}
	together   = rule{free: 20, max: MaxSharedPause, forget: time.Hour}
)

// MaxSharedPause is the longest that tries from other addresses can keep the
// owner waiting.
const MaxSharedPause = 30 * time.Second

const (
	// knownFor is how long an address counts as the owner's after a sign-in.
	knownFor = 90 * 24 * time.Hour
	// maxAddresses bounds the table; those that failed longest ago go first.
	maxAddresses = 4096
	// all is the row of all addresses together.
	all = "*"
)

// rule turns a count of wrong tries into a pause.
type rule struct {
	free   int           // tries without a pause
	max    time.Duration // the longest pause
	forget time.Duration // without a wrong try for so long, counting starts anew
}

// pause is the time after wrong try number n in which no other is allowed.
func (r rule) pause(n int) time.Duration {
	if n <= r.free {
		return 0
	}
	d := time.Second
	for range n - r.free - 1 {
		if d *= 2; d >= r.max {
			return r.max
		}
	}
	return d
}

// counted is a row of owner_attempts.
type counted struct {
	failures   int
	lastFailed time.Time
	knownUntil time.Time
}

// left is how much of the row's pause is left at now.
func (c counted) left(r rule, now time.Time) time.Duration {
	last := c.lastFailed
	if last.After(now) { // the clock was set back
		last = now
	}
	if now.Sub(last) >= r.forget {
		return 0
	}
	return max(0, last.Add(r.pause(c.failures)).Sub(now))
}

// next is the row after one more wrong try.
func (c counted) next(r rule, now time.Time) counted {
	if now.Sub(c.lastFailed) >= r.forget {
		c.failures = 0
	}
	c.failures++
	c.lastFailed = now
	return c
}

// Try is the verdict about one try before the password is looked at.
type Try struct {
	// Wait is how long no try is allowed. When it is not zero the try must be
	// refused unseen; it was not counted.
	Wait time.Duration
	// Pause is how long no other try is allowed if this one is wrong.
	Pause time.Duration
}

// Begin counts a try from address as wrong, unless there must be a pause first.
// Counting comes before checking, so that tries sent at once are counted like
// tries in a row; a right one is taken back by [Succeeded]. address is an IP
// address with or without a port.
//
// A loopback address or none at all stands for everybody behind a proxy that
// names nobody, so it has no pause of its own.
func Begin(tx *store.Tx, address string) (Try, error) {
	now := tx.Now()
	key, own, shared, err := read(tx, address)
	if err != nil {
		return Try{}, err
	}
	if wait := waits(own, shared, now); wait > 0 {
		return Try{Wait: wait}, nil
	}
	var t Try
	if key != "" {
		isNew := own == counted{}
		own = own.next(perAddress, now)
		t.Pause = perAddress.pause(own.failures)
		if err := write(tx, key, own); err != nil {
			return Try{}, err
		}
		if isNew {
			if err := trim(tx); err != nil {
				return Try{}, err
			}
		}
	}
	if !own.knownUntil.After(now) {
		shared = shared.next(together, now)
		t.Pause = max(t.Pause, together.pause(shared.failures))
		if err := write(tx, all, shared); err != nil {
			return Try{}, err
		}
	}
	return t, nil
}

// Pause is how long a try from address would have to wait now. It is the check
// that costs no write.
func Pause(q store.Querier, address string, now time.Time) (time.Duration, error) {
	_, own, shared, err := read(q, address)
	return waits(own, shared, now), err
}

// Succeeded takes back what [Begin] counted for a try that was right, and
// remembers the address as the owner's.
func Succeeded(tx *store.Tx, address string) error {
	now := tx.Now()
	key, own, shared, err := read(tx, address)
	if err != nil {
		return err
	}
	if !own.knownUntil.After(now) && shared.failures > 0 {
		shared.failures--
		if err := write(tx, all, shared); err != nil {
			return err
		}
	}
	if key == "" {
		return nil
	}
	return write(tx, key, counted{knownUntil: now.Add(knownFor)})
}

func waits(own, shared counted, now time.Time) time.Duration {
	wait := own.left(perAddress, now)
	if !own.knownUntil.After(now) {
		wait = max(wait, shared.left(together, now))
	}
	return wait
}

// keyOf is the address that pauses: an IPv6 guesser has a whole /64. It is ""
// for one that names nobody.
func keyOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() || ip.IsUnspecified() {
		return ""
	}
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}

func read(q store.Querier, address string) (key string, own, shared counted, err error) {
	if shared, err = row(q, all); err != nil {
		return "", own, shared, err
	}
	if key = keyOf(address); key != "" {
		own, err = row(q, key)
	}
	return key, own, shared, err
}

func row(q store.Querier, key string) (counted, error) {
	var c counted
	var last, known int64
	err := q.QueryRow(`SELECT failures, last_failed_at, known_until FROM owner_attempts WHERE address = ?`, key).Scan(&c.failures, &last, &known)
	if errors.Is(err, sql.ErrNoRows) {
		return counted{}, nil
	}
	if err != nil {
		return counted{}, fmt.Errorf("reading the wrong tries: %w", err)
	}
	c.lastFailed, c.knownUntil = time.UnixMilli(last), time.UnixMilli(known)
	return c, nil
}

func write(tx *store.Tx, key string, c counted) error {
	_, err := tx.Exec(`INSERT INTO owner_attempts (address, failures, last_failed_at, known_until) VALUES (?, ?, ?, ?)
		ON CONFLICT (address) DO UPDATE SET failures = excluded.failures, last_failed_at = excluded.last_failed_at, known_until = excluded.known_until`,
		key, c.failures, millis(c.lastFailed), millis(c.knownUntil))
	if err != nil {
		return fmt.Errorf("counting a try: %w", err)
	}
	return nil
}

func millis(t time.Time) int64 { return max(0, t.UnixMilli()) }

// trim drops addresses that no rule remembers, and the oldest of too many.
func trim(tx *store.Tx) error {
	now := tx.Now()
	_, err := tx.Exec(`DELETE FROM owner_attempts WHERE address <> ? AND (last_failed_at <= ? AND known_until <= ? OR address IN (
		SELECT address FROM owner_attempts WHERE address <> ? ORDER BY max(last_failed_at, known_until) DESC, address LIMIT -1 OFFSET ?))`,
		all, now.Add(-perAddress.forget).UnixMilli(), now.UnixMilli(), all, maxAddresses)
	if err != nil {
		return fmt.Errorf("trimming the wrong tries: %w", err)
	}
	return nil
}
