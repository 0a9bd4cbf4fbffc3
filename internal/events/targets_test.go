package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

const wakeURL = "https://wake.example/automations/webhook/1"

// credentials writes a credential file and returns its path.
func credentials(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credential.json")
	raw, err := json.Marshal(map[string]string{"url": wakeURL, "token": token})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func wakes(peer, credential string, scheme events.Scheme) events.Target {
	return events.Target{Owner: principal.SharedOwner, PeerID: peer, Generation: 1, RoutineID: "mailbox", Credential: credential, Scheme: scheme}
}

func TestWakeUp(t *testing.T) {
	for _, tt := range []struct {
		name     string
		scheme   events.Scheme
		token    string
		answer   answer
		state    events.State
		resendOK bool
	}{
		{"bearer 200", events.Bearer, "crsr_key", answer{status: 200, body: `{"success":true}`}, events.WebhookAccepted, false},
		{"bearer 202", events.Bearer, "crsr_key", answer{status: 202}, events.Failed, true},
		{"bearer 401", events.Bearer, "crsr_key", answer{status: 401}, events.Failed, true},
		{"bearer 410", events.Bearer, "crsr_key", answer{status: 410}, events.Failed, true},
		{"bearer 503", events.Bearer, "crsr_key", answer{status: 503}, events.Failed, true},
		{"bearer redirect", events.Bearer, "crsr_key", answer{status: 308}, events.Failed, true},
		{"signed 200", events.StandardWebhooks, secretOf(7), answer{status: 200}, events.WebhookAccepted, false},
		{"signed 202", events.StandardWebhooks, secretOf(7), answer{status: 202}, events.WebhookAccepted, false},
		{"signed 204", events.StandardWebhooks, secretOf(7), answer{status: 204}, events.Failed, true},
		{"no connection", events.Bearer, "crsr_key", answer{err: errors.New("refused")}, events.Failed, true},
		{"no secret", events.StandardWebhooks, "crsr_key", answer{}, events.Failed, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := events.Options{Targets: []events.Target{wakes("grok", credentials(t, tt.token), tt.scheme)}}
			inBubble(t, o, func(b *box) {
				b.world.set(func(request) answer { return tt.answer })
				if n := b.notification("grok"); n.Path != events.PathWebhook {
					t.Errorf("notification %+v", n)
				}
				id := b.send("grok")
				time.Sleep(time.Hour)
				d := b.wantState(id, tt.state, 1)
				if d.Path != events.PathWebhook || (d.Reason == "") != (tt.state == events.WebhookAccepted) {
					t.Errorf("delivery %+v", d)
				}
				if tt.name == "no secret" {
					if len(b.world.deliveries()) != 0 {
						t.Error("something was sent")
					}
					return
				}
				got := b.world.deliveries()
				if len(got) != 1 {
					t.Fatalf("%d attempts, want 1", len(got))
				}
				r := got[0]
				var body map[string]any
				if err := json.Unmarshal([]byte(r.body), &body); err != nil || len(body) != 4 {
					t.Errorf("the body is %s", r.body)
				}
				if body["messageId"] != id || body["peerId"] != "grok" || body["generation"] != 1.0 || body["eventId"] == "" || r.url != wakeURL {
					t.Errorf("the body is %s", r.body)
				}
				authorization := r.header.Get("Authorization")
				if tt.scheme == events.Bearer && (authorization != "Bearer crsr_key" || r.header.Get("Webhook-Signature") != "") ||
					tt.scheme == events.StandardWebhooks && (authorization != "" || !r.signedWith(t, tt.token)) {
					t.Errorf("the header is %v", r.header)
				}
				b.world.set(nil)
				_, err := b.Resend(context.Background(), body["eventId"].(string))
				if tt.resendOK != (err == nil) {
					t.Errorf("sending it again: %v", err)
				}
				b.settled()
				if tt.resendOK {
					b.wantState(id, events.WebhookAccepted, 2)
				}
			})
		})
	}
}

// TestUnknownWakeUpIsNeverRepeated: once a request may have arrived, only the
// owner can look what became of it.
func TestUnknownWakeUpIsNeverRepeated(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(b *box, id string)
	}{
		{"the answer is lost", func(*box, string) { time.Sleep(time.Hour) }},
		{"the gateway ends during the attempt", func(b *box, _ string) {
			time.Sleep(time.Second)
			b.restart()
		}},
		{"the gateway is killed after the claim", func(b *box, _ string) {
			time.Sleep(time.Hour)
			err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error {
				_, err := tx.Exec(`UPDATE event_deliveries SET state = 'submitting', reason = ''`)
				return err
			})
			if err != nil {
				b.t.Fatal(err)
			}
			b.restart()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := events.Options{Targets: []events.Target{wakes("grok", credentials(t, "key"), events.Bearer)}}
			inBubble(t, o, func(b *box) {
				b.world.set(func(request) answer { return answer{after: time.Hour} })
				b.world.connects = true
				id := b.send("grok")
				tt.end(b, id)
				b.world.set(nil)
				time.Sleep(time.Hour)
				b.restart()
				time.Sleep(time.Hour)
				if d := b.wantState(id, events.Unknown, 1); d.Reason == "" {
					t.Error("an unknown outcome without a reason")
				}
				if n := len(b.world.deliveries()); n != 1 {
					t.Errorf("%d attempts, want 1", n)
				}
				_, err := b.Resend(context.Background(), b.listed()[0].EventID)
				refused(t, err, events.NotResendable)
				next := b.send("grok")
				b.settled()
				b.wantState(next, events.WebhookAccepted, 1)
			})
		})
	}
}

func TestWakeStartsFromAWatermark(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		old := b.send("grok")
		b.options.Targets = []events.Target{wakes("grok", credentials(t, "key"), events.Bearer)}
		b.restart()
		if d := b.sendReplayed(old, "grok", 1); d.Path != events.PathNone {
			t.Errorf("mail from before the activation goes by %s", d.Path)
		}
		fresh := b.send("grok")
		b.settled()
		b.wantState(fresh, events.WebhookAccepted, 1)
		b.restart() // the watermark is that of the activation, not of the start
		if d := b.sendReplayed("between", "grok", 2); d.Path != events.PathWebhook {
			t.Errorf("after a restart mail from after the activation goes by %s", d.Path)
		}
		if log := b.audited(); !slices.Equal(log, []string{"wake.activate"}) {
			t.Errorf("audited: %v", log)
		}
	})
}

func TestWakeTargetFollowsOneGeneration(t *testing.T) {
	o := events.Options{Targets: []events.Target{wakes("grok", credentials(t, "key"), events.Bearer)}}
	inBubble(t, o, func(b *box) {
		b.world.set(func(request) answer { return answer{after: 5 * time.Second} })
		flying, waiting := b.send("grok"), b.send("grok")
		time.Sleep(time.Second)
		b.stopPeer("grok")
		time.Sleep(time.Minute)
		b.wantState(flying, events.WebhookAccepted, 1)
		b.wantState(waiting, events.Cancelled, 0)
		if d := b.sendAs("stopped", "grok"); d.Path != events.PathNone || !strings.Contains(d.Reason, "disabled") {
			t.Errorf("to the ended generation: %+v", d)
		}
		b.register("grok")
		if n := b.notification("grok"); n.Path != events.PathNone || !strings.Contains(n.Reason, "generation 2") {
			t.Errorf("notification %+v", n)
		}
		if d := b.sendAs("next", "grok"); d.Path != events.PathNone || d.Reason == "" {
			t.Errorf("mail of the next generation: %+v", d)
		}
		b.wantWarning("wake_target_disabled")
		b.restart()
		if d := b.sendAs("later", "grok"); d.Path != events.PathNone {
			t.Errorf("after a restart: %+v", d)
		}
		b.options.Targets[0].Generation = 2
		b.restart()
		id := b.send("grok")
		time.Sleep(time.Minute)
		b.wantState(id, events.WebhookAccepted, 1)
		if log := b.audited(); !slices.Equal(log, []string{"wake.activate", "wake.disable", "wake.remove", "wake.activate"}) {
			t.Errorf("audited: %v", log)
		}
	})
}

func TestWakeTargetWaitsForItsPeer(t *testing.T) {
	target := wakes("grok", credentials(t, "key"), events.Bearer)
	target.Generation = 2
	inBubble(t, events.Options{Targets: []events.Target{target}}, func(b *box) {
		if d := b.sendAs("now", "grok"); d.Path != events.PathNone {
			t.Errorf("path %s", d.Path)
		}
		b.wantWarning("wake_target_waiting")
		b.stopPeer("grok")
		b.register("grok")
		id := b.send("grok")
		b.settled()
		b.wantState(id, events.WebhookAccepted, 1)
	})
}

func TestSubscriptionPausesTheTarget(t *testing.T) {
	o := events.Options{Targets: []events.Target{wakes("grok", credentials(t, "key"), events.Bearer)}}
	inBubble(t, o, func(b *box) {
		b.subscribe("grok")
		if n := b.notification("grok"); n.Path != events.PathEvents || !strings.Contains(n.Reason, "paused") || n.ExpiresAt.IsZero() {
			t.Errorf("notification %+v", n)
		}
		out, err := b.Subscriptions(context.Background(), events.SubscriptionsIn{})
		if err != nil || len(out.Targets) != 1 || out.Targets[0].State != "paused" {
			t.Errorf("%+v, %v", out, err)
		}
		id := b.send("grok")
		b.settled()
		b.wantState(id, events.CallbackAccepted, 1)
		b.unsubscribe("grok")
		id = b.send("grok")
		b.settled()
		b.wantState(id, events.WebhookAccepted, 1)
	})
}

func TestRemovedTargetCancels(t *testing.T) {
	o := events.Options{Targets: []events.Target{wakes("grok", credentials(t, "key"), events.Bearer), wakes("dot", credentials(t, "key"), events.Bearer)}}
	inBubble(t, o, func(b *box) {
		b.world.set(func(request) answer { return answer{after: 5 * time.Second} })
		b.send("grok")
		waiting := b.send("grok")
		time.Sleep(time.Second)
		b.options.Targets = b.options.Targets[1:]
		b.restart()
		b.wantState(waiting, events.Cancelled, 0)
		if d := b.sendAs("next", "grok"); d.Path != events.PathNone {
			t.Errorf("path %s", d.Path)
		}
		id := b.send("dot")
		time.Sleep(time.Minute)
		b.wantState(id, events.WebhookAccepted, 1)
	})
}

func TestWakeBreaker(t *testing.T) {
	o := events.Options{Targets: []events.Target{wakes("grok", credentials(t, "key"), events.Bearer)}}
	inBubble(t, o, func(b *box) {
		b.world.set(always(503))
		b.queueMany("grok", 100)
		time.Sleep(time.Minute)
		if n := len(b.world.deliveries()); n > 8 {
			t.Errorf("%d wake-ups in the first minute", n)
		}
		b.wantWarning("receiver_failing")
		b.world.set(nil)
		time.Sleep(time.Minute)
		if st := b.status(); st.Waiting != 0 {
			t.Errorf("%d still wait", st.Waiting)
		}
	})
}

func TestCredentialFiles(t *testing.T) {
	good := `{"url":"https://wake.example/","token":"key"}`
	write := func(content string, mode os.FileMode) func(string) error {
		return func(path string) error {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				return err
			}
			return os.Chmod(path, mode)
		}
	}
	for _, tt := range []struct {
		name    string
		make    func(path string) error
		problem string // "" when it can be used
	}{
		{"good", write(good, 0o600), ""},
		{"spaced", write(" \n"+good+"\n\n", 0o600), ""},
		{"missing", func(string) error { return nil }, "no such file"},
		{"readable by others", write(good, 0o644), "chmod 600"},
		{"read-only", write(good, 0o400), "chmod 600"},
		{"a link", func(p string) error {
			return errors.Join(os.WriteFile(p+".real", []byte(good), 0o600), os.Symlink(p+".real", p))
		}, "is a link"},
		{"a directory", func(p string) error { return os.Mkdir(p, 0o600) }, "not a regular file"},
		{"of another user", func(p string) error {
			return errors.Join(os.WriteFile(p, []byte(good), 0o600), os.Chown(p, 12345, 12345))
		}, "another user"},
		{"empty", write("", 0o600), "nothing else"},
		{"no JSON", write("token", 0o600), "nothing else"},
		{"no token", write(`{"url":"https://wake.example/"}`, 0o600), "nothing else"},
		{"empty token", write(`{"url":"https://wake.example/","token":""}`, 0o600), "nothing else"},
		{"a further key", write(`{"url":"https://wake.example/","token":"key","x":1}`, 0o600), "nothing else"},
		{"other case", write(`{"URL":"https://wake.example/","token":"key"}`, 0o600), "nothing else"},
		{"numeric token", write(`{"url":"https://wake.example/","token":1}`, 0o600), "nothing else"},
		{"header injection", write(`{"url":"https://wake.example/","token":"a\r\nX: y"}`, 0o600), "white space"},
		{"long", write(good+strings.Repeat(" ", 9<<10), 0o600), "longer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "credential.json")
			if err := tt.make(path); err != nil {
				if os.Geteuid() != 0 && tt.name == "of another user" {
					return // only root can give a file away
				}
				t.Fatal(err)
			}
			inBubble(t, events.Options{Targets: []events.Target{wakes("grok", path, events.Bearer)}}, func(b *box) {
				id := b.send("grok")
				b.settled()
				if tt.problem == "" {
					b.wantState(id, events.WebhookAccepted, 1)
					return
				}
				b.wantState(id, events.Failed, 1)
				if len(b.world.deliveries()) != 0 {
					t.Error("something was sent")
				}
				w := b.wantWarning("wake_target_unusable")
				if !strings.Contains(w.Text, tt.problem) || strings.Contains(w.Text, `"key"`) {
					t.Errorf("the warning is %q, want %q in it", w.Text, tt.problem)
				}
			})
		})
	}
}

func TestCredentialInTheEnvironment(t *testing.T) {
	o := events.Options{
		Targets: []events.Target{wakes("grok", "env:WAKE", events.Bearer), wakes("dot", "env:NONE", events.Bearer)},
		Getenv: func(name string) string {
			if name == "WAKE" {
				return `{"url":"` + wakeURL + `","token":"key"}`
			}
			return ""
		},
	}
	inBubble(t, o, func(b *box) {
		id := b.send("grok")
		b.settled()
		b.wantState(id, events.WebhookAccepted, 1)
		if w := b.wantWarning("wake_target_unusable"); !strings.Contains(w.Text, "NONE") {
			t.Errorf("warning %q", w.Text)
		}
	})
}

func TestTwoTargetsForAPeerAreRefused(t *testing.T) {
	target := wakes("grok", "env:WAKE", events.Bearer)
	inBubble(t, events.Options{}, func(b *box) {
		o := b.options
		o.Store, o.Mailbox, o.Client, o.Targets = b.store, b.peers, b.client(), []events.Target{target, target}
		if _, err := events.New(o); err == nil {
			t.Error("two targets were accepted")
		}
	})
}

// sendReplayed is a message that is stored with an earlier place in the order.
func (b *box) sendReplayed(id, peer string, seq int64) events.Delivery {
	b.t.Helper()
	d, err := store.Write(context.Background(), b.store, func(tx *store.Tx) (events.Delivery, error) {
		return b.Sent(tx, events.Mail{Seq: seq, MessageID: id, To: b.peers.peers[peer]})
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// wantWarning fails the test unless there is one warning of this code.
func (b *box) wantWarning(code string) events.Warning {
	b.t.Helper()
	all := b.status().Warnings
	i := slices.IndexFunc(all, func(w events.Warning) bool { return w.Code == code })
	if i < 0 {
		b.t.Fatalf("no warning %s in %+v", code, all)
	}
	return all[i]
}

// connected tells the gateway that a connection exists, as the real transport
// does.
func connected(ctx context.Context) {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
}
