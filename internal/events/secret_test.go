package events_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

func TestSecretForms(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		for _, n := range []int{24, 32, 48, 64} {
			raw := bytes.Repeat([]byte{0xfb}, n)
			padded := "whsec_" + base64.StdEncoding.EncodeToString(raw)
			bare := "whsec_" + base64.RawStdEncoding.EncodeToString(raw)
			for form, secret := range map[string]string{"padded": padded, "bare": bare} {
				b.subscribe("dot", func(in *events.SubscribeIn) {
					in.Secret, in.URL = secret, fmt.Sprintf("https://callback.example/%d/%s", n, form)
				})
				got := b.world.got(true)
				if r := got[len(got)-1]; !r.signedWith(t, padded) {
					t.Errorf("%d bytes, %s: not signed with the secret", n, form)
				}
			}
		}
	})
}

func TestRotation(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		rotate := func(to byte) {
			b.subscribe("dot", func(in *events.SubscribeIn) { in.Secret = secretOf(to) })
		}
		signed := func(by ...byte) {
			t.Helper()
			b.send("dot")
			b.settled()
			got := b.world.deliveries()
			r := got[len(got)-1]
			for _, s := range []byte{1, 2, 3} {
				if r.signedWith(t, secretOf(s)) != slices.Contains(by, s) {
					t.Errorf("signed with secret %d: %v, want those of %v", s, !slices.Contains(by, s), by)
				}
			}
			if n := len(strings.Fields(r.header.Get("Webhook-Signature"))); n != len(by) {
				t.Errorf("%d signatures, want %d", n, len(by))
			}
		}
		rotate(1)
		signed(1)
		rotate(2)
		signed(1, 2)
		b.restart()
		signed(1, 2)
		time.Sleep(30 * time.Minute)
		rotate(2) // a refresh with the same secret does not prolong the old one's life
		signed(1, 2)
		time.Sleep(31 * time.Minute)
		signed(2)
		rotate(3)
		signed(2, 3)
		b.unsubscribe("dot")
		rotate(1)
		signed(1) // the secret of an ended subscription signs nothing
	})
}

func TestSecretIsSealed(t *testing.T) {
	secret := bytes.Repeat([]byte("sealed?!"), 4)
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot", func(in *events.SubscribeIn) { in.Secret = "whsec_" + base64.StdEncoding.EncodeToString(secret) })
		b.stop()
		raw, err := os.ReadFile(filepath.Join(b.dir, store.FileName))
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range [][]byte{secret, []byte(base64.StdEncoding.EncodeToString(secret))[:20]} {
			if bytes.Contains(raw, form) {
				t.Error("the secret is readable in the database")
			}
		}
		b.start()
	})
}

func TestLostKey(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.stop()
		path := filepath.Join(b.dir, sealing.FileName)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(context.Background(), store.Options{Dir: b.dir})
		if err != nil {
			t.Fatal(err)
		}
		_, err = events.OpenKey(context.Background(), s)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "forget-secrets") {
			t.Errorf("a missing key: %v", err)
		}
		if n, err := events.ForgetSecrets(context.Background(), s); err != nil || n != 1 {
			t.Errorf("forgot %d, %v", n, err)
		}
		s.Close()
		b.start()
		if n := b.notification("dot"); n.Path != events.PathNone || !strings.Contains(n.Reason, "subscribe again") {
			t.Errorf("notification %+v", n)
		}
		id := b.send("dot")
		b.subscribe("dot")
		if (b.delivery(id) != events.Delivery{}) {
			t.Error("a delivery is recorded")
		}
	})
}

func TestForeignKeyEndsTheSubscription(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		b.subscribe("dot")
		b.stop()
		if err := os.Remove(filepath.Join(b.dir, sealing.FileName)); err != nil {
			t.Fatal(err)
		}
		if _, err := sealing.LoadOrCreate(b.dir); err != nil {
			t.Fatal(err)
		}
		b.start()
		id := b.send("dot")
		time.Sleep(time.Minute)
		if d := b.wantState(id, events.Cancelled, 1); !strings.Contains(d.Reason, "subscribe again") {
			t.Errorf("reason %q", d.Reason)
		}
		if n := len(b.world.deliveries()); n != 0 {
			t.Error("an unsigned delivery was sent")
		}
	})
}
