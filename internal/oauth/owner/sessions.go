package owner

import (
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"agentrelay/internal/store"
)

// The life of a remembered session: it ends after 30 days without a consent in
// that browser, and after 90 days in any case, when the password is asked for
// again.
const (
	SessionIdle = 30 * 24 * time.Hour
	SessionLife = 90 * 24 * time.Hour
)

// maxSessions bounds the table; the one that was used longest ago ends first.
const maxSessions = 64

// sessionCookie has the prefix with which browsers accept it only over https,
// for this very host and every path of it.
const sessionCookie = "__Host-agentrelay_owner"

// Sessions remembers browsers in which the owner has given the password. The
// database holds only a hash of what the browser holds.
type Sessions struct {
	// Secure says that the public base URL is https. Without it no session is
	// remembered: every program on the machine could read or set the cookie.
	Secure bool
	// Rand makes tokens.
	Rand io.Reader
}

// Session is one remembered browser.
type Session struct {
	token string
	ends  time.Time
}

// Token returns the session token that the browser sent, or "".
func (s Sessions) Token(r *http.Request) string {
	c, err := r.Cookie(sessionCookie)
	if !s.Secure || err != nil || len(c.Value) != base64.RawURLEncoding.EncodedLen(32) {
		return ""
	}
	return c.Value
}

// Valid reports whether token is a session that has not ended.
func (s Sessions) Valid(q store.Querier, token string, now time.Time) (bool, error) {
	_, err := s.find(q, token, now)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// find returns [sql.ErrNoRows] for a token that is no session, or ended.
func (s Sessions) find(q store.Querier, token string, now time.Time) (created time.Time, err error) {
	if !s.Secure || token == "" {
		return created, sql.ErrNoRows
	}
	var ms int64
	err = q.QueryRow(`SELECT created_at FROM owner_sessions WHERE hash = ? AND created_at > ? AND last_used_at > ?`,
		hashOf(token), now.Add(-SessionLife).UnixMilli(), now.Add(-SessionIdle).UnixMilli()).Scan(&ms)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return created, fmt.Errorf("reading the session: %w", err)
	}
	return time.UnixMilli(ms), err
}

// Start remembers a new browser. Give the session to [Sessions.SetCookie] once
// the transaction is committed.
func (s Sessions) Start(tx *store.Tx) (Session, error) {
	if !s.Secure {
		return Session{}, errors.New("no session is remembered without https")
	}
	var raw [32]byte
	if _, err := io.ReadFull(s.Rand, raw[:]); err != nil {
		return Session{}, fmt.Errorf("making a session: %w", err)
	}
	token, now := base64.RawURLEncoding.EncodeToString(raw[:]), tx.Now()
	if _, err := tx.Exec(`INSERT INTO owner_sessions (hash, created_at, last_used_at) VALUES (?, ?, ?)`, hashOf(token), now.UnixMilli(), now.UnixMilli()); err != nil {
		return Session{}, fmt.Errorf("storing the session: %w", err)
	}
	_, err := tx.Exec(`DELETE FROM owner_sessions WHERE created_at <= ? OR last_used_at <= ? OR hash IN (
		SELECT hash FROM owner_sessions ORDER BY last_used_at DESC, created_at DESC, hash LIMIT -1 OFFSET ?)`,
		now.Add(-SessionLife).UnixMilli(), now.Add(-SessionIdle).UnixMilli(), maxSessions)
	if err != nil {
		return Session{}, fmt.Errorf("ending old sessions: %w", err)
	}
	return Session{token, now.Add(SessionIdle)}, nil
}

// Use checks a session once more and prolongs it. It reports false for a token
// that is no session, or ended.
func (s Sessions) Use(tx *store.Tx, token string) (Session, bool, error) {
	now := tx.Now()
	created, err := s.find(tx, token, now)
	if errors.Is(err, sql.ErrNoRows) {
		return Session{}, false, nil
	}
	if err != nil {
		return Session{}, false, err
	}
	if _, err := tx.Exec(`UPDATE owner_sessions SET last_used_at = ? WHERE hash = ?`, now.UnixMilli(), hashOf(token)); err != nil {
		return Session{}, false, fmt.Errorf("prolonging the session: %w", err)
	}
	ends := now.Add(SessionIdle)
	if latest := created.Add(SessionLife); latest.Before(ends) {
		ends = latest
	}
	return Session{token, ends}, true, nil
}

// End ends one session.
func (s Sessions) End(tx *store.Tx, token string) error {
	if _, err := tx.Exec(`DELETE FROM owner_sessions WHERE hash = ?`, hashOf(token)); err != nil {
		return fmt.Errorf("ending the session: %w", err)
	}
	return nil
}

// EndSessions ends every session: who has only a cookie is asked for the
// password again. A new password calls it.
func EndSessions(tx *store.Tx) error {
	if _, err := tx.Exec(`DELETE FROM owner_sessions`); err != nil {
		return fmt.Errorf("ending the sessions: %w", err)
	}
	return nil
}

// SetCookie gives the session to the browser; the zero Session takes it away.
// SameSite=Lax, because the owner comes here by a link of the client.
func (s Sessions) SetCookie(w http.ResponseWriter, sess Session, now time.Time) {
	c := &http.Cookie{Name: sessionCookie, Value: sess.token, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: -1}
	if sess.token != "" {
		c.MaxAge = int(sess.ends.Sub(now).Seconds())
	}
	http.SetCookie(w, c)
}

func hashOf(token string) []byte {
	h := sha256.Sum256([]byte(token))
	return h[:]
}
