package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/events"
	"agentrelay/internal/safedial"
)

const (
	// nearEnd is when a subscription is about to end, and lapsed how long one that
	// ended is worth a word.
	nearEnd = 3 * 24 * time.Hour
	lapsed  = 7 * 24 * time.Hour
	// recent is how far back failed deliveries are told.
	recent = 7 * 24 * time.Hour
)

func eventChecks() []check {
	return []check{
		{id: "events.subscriptions", needs: needStored, why: "A client is woken by its subscription, which ends at a fixed time unless the client renews it, and is worth nothing while its receiver fails.", run: checkSubscriptions},
		{id: "events.deliveries", needs: needStored, why: "What could not be delivered is tried five times and then never again by itself.", run: checkDeliveries},
		{id: "wake.targets", needs: needStored, budget: 30 * time.Second, why: "A routine is woken once for each message and never twice, so a target that can't be reached loses wake-ups. Nobody is woken by this check.", run: checkTargets},
	}
}

// about is what a subscription is for, without its receiver.
func about(s events.SubscriptionInfo) string {
	return s.Owner + " " + s.Name + " " + string(s.Arguments)
}

func shownSubscription(s events.SubscriptionInfo) string {
	return fmt.Sprintf("%s %s at %s", s.Name, s.Arguments, s.Receiver)
}

func checkSubscriptions(_ context.Context, v *visit) []finding {
	now := v.o.Now()
	last := map[string]time.Time{} // until when anybody is told
	var active, first = 0, time.Time{}
	for _, s := range v.stored().subscriptions {
		if s.State != "active" {
			continue
		}
		active++
		if end := s.ExpiresAt.Time; first.IsZero() || end.Before(first) {
			first = end
		}
		if s.ExpiresAt.After(last[about(s)]) {
			last[about(s)] = s.ExpiresAt.Time
		}
	}
	var found []finding
	for _, s := range v.stored().subscriptions {
		if f, ok := judgeSubscription(s, now, last[about(s)]); ok {
			found = append(found, f.of(shownSubscription(s)))
		}
	}
	switch {
	case len(found) > 0:
		return found
	case active == 0:
		return one(skip("No client has a subscription."))
	}
	return one(pass("%s, the first ends in %s.", count(int64(active), "subscription"), span(first.Sub(now))))
}

// judgeSubscription says what is wrong with one; until is when the last one for the
// same ends.
func judgeSubscription(s events.SubscriptionInfo, now, until time.Time) (finding, bool) {
	const again = "Ask its client to subscribe again."
	left := s.ExpiresAt.Sub(now)
	switch {
	case s.State == "active" && !s.FailedSince.IsZero():
		return warn("See that the receiver still exists; a client that is gone is ended with: gateway clients revoke "+s.ClientID+". What failed is sent again with: gateway events resend.", "Deliveries have failed since %s: %s. %s.", when(s.FailedSince.Time), s.Reason, waiting(s.Waiting)), true
	case s.State == "active" && left < nearEnd && left < s.ExpiresAt.Sub(s.RefreshedAt.Time)/10 && !until.After(s.ExpiresAt.Time):
		return warn(again, "It ends at %s, in %s.", when(s.ExpiresAt.Time), span(left)), true
	case s.State == "expired" && left > -lapsed && until.IsZero():
		return warn(again, "It ended at %s, and nobody is told since.", when(s.ExpiresAt.Time)), true
	}
	return finding{}, false
}

func waiting(n int) string {
	if n == 0 {
		return "Nothing waits"
	}
	return count(int64(n), "delivery waiting")
}

func checkDeliveries(_ context.Context, v *visit) []finding {
	n, newest := 0, events.DeliveryInfo{}
	for _, d := range v.stored().dead {
		if v.o.Now().Sub(d.CreatedAt.Time) > recent {
			continue
		}
		if n++; n == 1 {
			newest = d
		}
	}
	if n == 0 {
		return one(pass("None failed within the last %s.", span(recent)))
	}
	return one(warn("See them with: gateway events list --dead. When the receiver works again: gateway events resend <eventId>.",
		"%d failed within the last %s, the newest of %s at %s: %s.", n, span(recent), newest.Name, when(newest.CreatedAt.Time), strings.TrimSuffix(newest.Reason, ".")))
}

func checkTargets(ctx context.Context, v *visit) []finding {
	targets := v.stored().targets
	if len(targets) == 0 {
		return one(skip("The config has no peerWakeTargets."))
	}
	found := make([]finding, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { found[i] = v.checkTarget(ctx, t).of(t.PeerID) })
	}
	wg.Wait()
	return found
}

func (v *visit) checkTarget(ctx context.Context, t events.TargetInfo) finding {
	switch t.State {
	case "unusable":
		return fail("Correct the file that credentialFile names: mode 0600, yours, no link, {\"url\": …, \"token\": …}.", "%s", sentence(fmt.Errorf("%s", t.Reason)))
	case "disabled":
		return warn("Put the peer's present generation into peerWakeTargets (gateway peers list shows it) and restart the gateway.", "%s", t.Reason)
	case "waiting":
		return warn("Let its client call register_peer, or correct peerId and generation in peerWakeTargets; then restart the gateway.", "%s", t.Reason)
	}
	if err := v.knock(ctx, t.Receiver); err != nil {
		return fail("See that the address in its credentialFile is the one that the routine's page shows, and that this machine reaches the internet.", "%s can't be reached: %s", t.Receiver, sentence(safedial.Cause(err)))
	}
	if t.State == "paused" {
		return pass("%s can be reached; paused while the peer has a subscription.", t.Receiver)
	}
	return pass("%s can be reached, and its credential can be used.", t.Receiver)
}

// knock connects to a receiver as a wake-up would, and sends nothing.
func (v *visit) knock(ctx context.Context, receiver string) error {
	o := v.o.Safedial
	o.AllowLoopback = v.config.Safedial.AllowLoopback
	d := safedial.New(o)
	if err := d.CheckURL(receiver); err != nil {
		return err
	}
	u, err := url.Parse(receiver)
	if err != nil {
		return err
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	defer conn.Close()
	if u.Scheme == "http" {
		return nil
	}
	return tls.Client(conn, &tls.Config{ServerName: u.Hostname(), RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12}).HandshakeContext(ctx)
}
