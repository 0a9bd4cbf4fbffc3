package devices

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/store"
)

// clock is a clock that tests move.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// tryPair sends one pair frame and returns the code of the refusal, or "".
func (r *relay) tryPair(code, name string) string {
	d := dial(r.t, r.url)
	defer d.conn.CloseNow()
	d.send(frame{"type": "pair", "code": code, "device": name})
	f, err := d.next()
	if err != nil {
		r.t.Error(err)
	}
	if f.text("type") == "paired" {
		return ""
	}
	return f.text("code") + ": " + f.text("msg")
}

func (r *relay) code(replace string) Code {
	r.t.Helper()
	code, err := r.PairingCode(context.Background(), PairIn{Replace: replace})
	if err != nil {
		r.t.Fatal(err)
	}
	return code
}

func TestACodePairsOneDevice(t *testing.T) {
	r := newRelay(t)
	first := r.code("")
	if again := r.code(""); again.Code != first.Code || !strings.HasSuffix(first.URL, "/device") {
		t.Errorf("%v, then %v", first, again)
	}
	if len(strings.ReplaceAll(first.Code, "-", ""))*5 < 50 || strings.ContainsAny(first.Code, "01IO") {
		t.Errorf("a weak or ambiguous code: %s", first.Code)
	}
	r.pairWith(strings.ToLower(strings.ReplaceAll(first.Code, "-", " ")), "laptop") // as people type
	if got := r.tryPair(first.Code, "phone"); !strings.HasPrefix(got, "auth: ") {
		t.Errorf("a used code gave %q", got)
	}
	if next := r.code(""); next.Code == first.Code {
		t.Error("no fresh code after a pairing")
	}
}

func TestACodeExpires(t *testing.T) {
	var c clock
	r := newRelay(t, func(o *Options) { o.Now = c.now })
	code := r.code("")
	if left := code.ExpiresAt.Sub(c.now()); left > 10*time.Minute || left < 9*time.Minute {
		t.Error(left)
	}
	c.advance(10*time.Minute + time.Second)
	if got := r.tryPair(code.Code, "laptop"); !strings.HasPrefix(got, "auth: ") {
		t.Errorf("an expired code gave %q", got)
	}
}

// TestFiveWrongTriesBurnACode, also when they come at the same instant: then the right
// one is refused, until the owner asks for another.
func TestFiveWrongTriesBurnACode(t *testing.T) {
	r := newRelay(t)
	code := r.code("")
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if got := r.tryPair(fmt.Sprintf("2222-2222-222%d", i+2), "thief"); !strings.HasPrefix(got, "auth: this pairing code is not valid") {
				t.Errorf("a wrong code gave %q", got)
			}
		})
	}
	wg.Wait()
	if got := r.tryPair(code.Code, "laptop"); !strings.HasPrefix(got, "auth: this pairing code is not valid") {
		t.Errorf("a burnt code gave %q", got)
	}
	for range 4 {
		r.tryPair("x", "thief")
	}
	if got := r.tryPair(r.code("").Code, "laptop"); !strings.HasPrefix(got, "auth: throttled") {
		t.Errorf("the eleventh try in a minute gave %q", got)
	}
	if n, _, _ := r.Count(t.Context()); n != 0 {
		t.Errorf("%d devices are paired", n)
	}
}

func TestOneCodeAtOneInstantPairsOneDevice(t *testing.T) {
	r := newRelay(t)
	code := r.code("").Code
	var paired atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if r.tryPair(code, fmt.Sprintf("d-%d", i)) == "" {
				paired.Add(1)
			}
		})
	}
	wg.Wait()
	if n, _, _ := r.Count(t.Context()); n != 1 || paired.Load() != 1 {
		t.Errorf("%d paired, %d stored", paired.Load(), n)
	}
}

func TestANameIsPairedAnewOnlyIfTheOwnerConfirms(t *testing.T) {
	r := newRelay(t)
	old := r.pairDevice("laptop")
	again := r.pairDevice("laptop") // it never came back: the answer may have been lost
	d := dial(t, r.url)
	d.send(hello("laptop", old))
	d.refused("auth")
	d = r.connect("laptop", again)

	code := r.code("")
	if got := r.tryPair(code.Code, "laptop"); !strings.HasPrefix(got, "device_taken: ") || !strings.Contains(got, "--replace laptop") {
		t.Errorf("a name that is taken gave %q", got)
	}
	if got := r.tryPair(r.code("laptop").Code, "phone"); got != "" {
		t.Errorf("the code of a replacement does not pair a new name: %q", got)
	}
	token := r.pairWith(r.code("laptop").Code, "laptop")
	d.refused("auth")
	r.connect("laptop", token)
	_, err := r.PairingCode(t.Context(), PairIn{Replace: "nobody"})
	refusedWith(t, err, UnknownDevice, "")
}

func TestPairingNeedsARunningGateway(t *testing.T) {
	r := newRelay(t)
	_, err := New(Options{Store: r.store}).PairingCode(t.Context(), PairIn{})
	refusedWith(t, err, NeedsGateway, "")
}

// TestSecretsStayInMemory: no code and no token in the log, and of tokens only
// hashes in the database; a device's arguments go with its call.
func TestSecretsStayInMemory(t *testing.T) {
	r := newRelay(t)
	code := r.code("").Code
	token := r.pairWith(code, "laptop")
	d := r.connect("laptop", token)
	in := echo("laptop")
	in.Args = []byte(`{"text":"the eagle lands"}`)
	call := r.start(t.Context(), alice, in)
	d.answer("at midnight")
	if got := within(t, call); got.err != nil {
		t.Fatal(got.err)
	}
	r.tryPair(code, "thief")
	next := r.code("").Code
	for _, secret := range []string{code, strings.ReplaceAll(code, "-", ""), next, token, "eagle", "midnight", in.Reason} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	err := store.Read(t.Context(), r.store, func(q *store.Reader) error {
		return q.Query(func(s store.Scanner) error {
			var text string
			err := s.Scan(&text)
			for _, secret := range []string{token, code, "eagle", "midnight"} {
				if strings.Contains(text, secret) {
					t.Errorf("the database has %q in %s", secret, text)
				}
			}
			return err
		}, `SELECT name || ' ' || CAST(token_hash AS TEXT) FROM devices UNION ALL SELECT action || subject || outcome || detail FROM audit_log UNION ALL SELECT CAST(args AS TEXT) || reason FROM device_calls`)
	})
	if err != nil {
		t.Fatal(err)
	}
}
