package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"agentrelay/internal/client"
	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth/owner"
)

// demoLimit ends a demo that hangs.
const demoLimit = 30 * time.Second

func (a *app) demoCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "demo",
		Short: "Watch two clients talk through a throwaway gateway",
		Long: `Starts a gateway with an empty database on a free loopback port. Two clients register,
get the owner's consent and exchange messages, over real HTTP with real OAuth. Then
everything is removed again. Your own gateway, config and state are not touched.`,
		Example: `  gateway demo
  gateway demo --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context()) },
	})
}

// demoStep is one line of the transcript.
type demoStep struct {
	Who  string  `json:"who"`
	What string  `json:"what"`
	Ms   float64 `json:"ms"`
}

// demo is one play and its transcript.
type demo struct {
	app   *app
	steps []demoStep
	err   error
}

func (a *app) demo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "agent-relay-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	d := &demo{app: a}
	begun := time.Now()
	if err := d.play(ctx, dir); err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			return failed("", "the demo did not finish in %s: %w", demoLimit, err)
		}
		return fmt.Errorf("the demo stopped: %w", err)
	}
	if a.json {
		return a.printJSON(a.Stdout, map[string]any{"steps": d.steps, "ms": milliseconds(time.Since(begun))})
	}
	_, err = fmt.Fprintf(a.Stdout, "\nDone in %.1f s, and all of it is removed. Run \"gateway serve\" for a gateway that stays.\n", time.Since(begun).Seconds())
	return err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// step does one thing and adds it to the transcript. After a failure the rest
// is not done any more.
func (d *demo) step(who, what string, do func() error) {
	if d.err != nil {
		return
	}
	begun := time.Now()
	if d.err = do(); d.err != nil {
		d.err = fmt.Errorf("%s %s: %w", who, what, d.err)
		return
	}
	s := demoStep{who, what, milliseconds(time.Since(begun))}
	d.steps = append(d.steps, s)
	if !d.app.json {
		fmt.Fprintf(d.app.Stdout, "%9.1f ms  %-9s %s\n", s.Ms, s.Who, s.What)
	}
}

// player is one client of the demo.
type player struct {
	name     string
	password string
	server   *client.Server
	id       string
	session  *client.Session
}

const demoCallback = "http://127.0.0.1/callback" // nobody listens: the demo reads the redirect itself

func (d *demo) play(ctx context.Context, dir string) error {
	var g *gateway.Gateway
	password := ""
	d.step("gateway", "starts with an empty database", func() (err error) {
		g, password, err = d.app.throwaway(ctx, dir)
		return err
	})
	if d.err != nil {
		return d.err
	}
	serving, stop := context.WithCancel(ctx)
	ended, ready := make(chan error, 1), make(chan string, 1)
	go func() { ended <- g.Run(serving, func(url string) { ready <- url }) }()
	defer func() {
		stop()
		if err := <-ended; err != nil && d.err == nil {
			d.err = err
		}
	}()

	mcpURL := ""
	d.step("gateway", "listens on loopback", func() error {
		select {
		case mcpURL = <-ready:
			return nil
		case err := <-ended:
			ended <- nil
			return fmt.Errorf("it ended: %w", err)
		}
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	h := &http.Client{Transport: transport}
	writer, reviewer := &player{name: "writer", password: password}, &player{name: "reviewer", password: password}
	d.connect(ctx, h, mcpURL, writer)
	d.connect(ctx, h, mcpURL, reviewer)
	d.converse(ctx, writer, reviewer)
	for _, p := range []*player{writer, reviewer} {
		if p.session != nil {
			p.session.Close()
		}
	}
	return d.err
}

// throwaway builds a gateway in dir on a free port.
func (a *app) throwaway(ctx context.Context, dir string) (*gateway.Gateway, string, error) {
	c, err := config.Default(func(string) string { return dir })
	if err != nil {
		return nil, "", err
	}
	c.Port, c.SharedOwner = 0, true
	c.StateDir = filepath.Join(dir, "state")
	c.OwnerTokenFile = filepath.Join(dir, "owner.json")
	password, err := owner.GeneratePassword(a.Rand)
	if err != nil {
		return nil, "", err
	}
	if err := owner.WritePassword(c.OwnerTokenFile, password, a.Rand, false); err != nil {
		return nil, "", err
	}
	log := slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	g, err := gateway.New(ctx, gateway.Options{Config: c, Rand: a.Rand, Log: log, Version: thisBuild().Version})
	return g, password, err
}

// connect takes a client from the MCP URL to an open session.
func (d *demo) connect(ctx context.Context, h *http.Client, mcpURL string, p *player) {
	d.step(p.name, "finds the authorization server from the MCP URL", func() (err error) {
		p.server, err = client.Discover(ctx, h, mcpURL)
		return err
	})
	d.step(p.name, "registers itself as an OAuth client", func() (err error) {
		p.id, err = p.server.Register(ctx, p.name, demoCallback)
		return err
	})
	access := ""
	d.step(p.name, "is allowed by the owner, with the password, and gets its tokens", func() error {
		flow := p.server.Authorize(p.id, "", demoCallback)
		to, err := flow.Consent(ctx, p.password, client.Allow)
		if err != nil {
			return err
		}
		token, err := flow.Redeem(ctx, to)
		if err != nil {
			return err
		}
		access = token.AccessToken
		return nil
	})
	d.step(p.name, "opens an MCP session", func() (err error) {
		p.session, err = p.server.Connect(ctx, p.name, access)
		return err
	})
	d.step(p.name, fmt.Sprintf("registers the peer %q", p.name), func() error {
		return p.session.Call(ctx, "register_peer", mailbox.RegisterPeerIn{PeerID: p.name, Kind: mailbox.Chat}, nil)
	})
}

// converse is the conversation: a message, its reply, and an ack of each.
func (d *demo) converse(ctx context.Context, writer, reviewer *player) {
	question, answer := uuid.NewString(), uuid.NewString()
	d.send(ctx, writer, mailbox.SendPeerMessageIn{MessageID: question, FromPeerID: "writer", ToPeerID: "reviewer", Text: "Please review the draft."})
	d.step("reviewer", "lists its inbox: 1 message waits", func() error {
		var inbox mailbox.ListPeerMessagesOut
		err := reviewer.session.Call(ctx, "list_peer_messages", mailbox.ListPeerMessagesIn{PeerID: "reviewer"}, &inbox)
		if err == nil && (len(inbox.Messages) != 1 || inbox.Messages[0].MessageID != question) {
			err = fmt.Errorf("the inbox has %d messages", len(inbox.Messages))
		}
		return err
	})
	d.read(ctx, reviewer, question, "Please review the draft.")
	d.send(ctx, reviewer, mailbox.SendPeerMessageIn{MessageID: answer, FromPeerID: "reviewer", ToPeerID: "writer", Text: "Reviewed: see the notes.", InReplyTo: &question})
	d.ack(ctx, reviewer, question)
	d.read(ctx, writer, answer, "Reviewed: see the notes.")
	d.ack(ctx, writer, answer)
}

func (d *demo) send(ctx context.Context, p *player, m mailbox.SendPeerMessageIn) {
	what := fmt.Sprintf("sends %q, which is stored when the answer comes", m.Text)
	if m.InReplyTo != nil {
		what = fmt.Sprintf("replies %q", m.Text)
	}
	d.step(p.name, what, func() error { return p.session.Call(ctx, "send_peer_message", m, nil) })
}

func (d *demo) read(ctx context.Context, p *player, id, want string) {
	d.step(p.name, "reads the text", func() error {
		var out mailbox.GetPeerMessageOut
		err := p.session.Call(ctx, "get_peer_message", mailbox.GetPeerMessageIn{MessageID: id, PeerID: &p.name}, &out)
		if err == nil && out.Message.Text != want {
			err = fmt.Errorf("got another text of %d bytes", len(out.Message.Text))
		}
		return err
	})
}

func (d *demo) ack(ctx context.Context, p *player, id string) {
	d.step(p.name, "acknowledges it as processed", func() error {
		return p.session.Call(ctx, "ack_peer_message", mailbox.AckPeerMessageIn{MessageID: id, PeerID: p.name}, nil)
	})
}
