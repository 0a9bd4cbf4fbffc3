package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/admin"
	"agentrelay/internal/devices"
	"agentrelay/internal/devices/wire"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// RelayOptions says what [Relay] serves.
type RelayOptions struct {
	// StateDir is the relay's own state directory; it must not be that of a gateway.
	StateDir string
	// Listener is where devices dial in; Relay closes it.
	Listener net.Listener
	// In and Out carry MCP, a message a line, and nothing else is written to Out.
	In  io.ReadCloser
	Out io.WriteCloser
	// Ready is called once devices may come, with the pairing code if no device is
	// paired yet.
	Ready   func(url string, code *devices.Code)
	Now     func() time.Time
	Rand    io.Reader
	Log     *slog.Logger
	Version string
}

// Relay is the stand-alone relay of the devices' specification, for a harness that
// starts it: the three device tools on standard input and output, devices on an
// address of their own, the owner's device commands on a socket in the state
// directory. It ends when ctx or In does; the errors of [store.Open] come wrapped.
func Relay(ctx context.Context, o RelayOptions) (err error) {
	defer o.Listener.Close()
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	s, err := store.Open(ctx, store.Options{Dir: o.StateDir, Now: o.Now, Log: o.Log})
	if err != nil {
		return fmt.Errorf("opening the state directory: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	socket, err := admin.Listen(o.StateDir)
	if err != nil {
		return err
	}
	url := "ws://" + o.Listener.Addr().String()
	d := devices.New(devices.Options{Store: s, URL: url, Now: o.Now, Rand: o.Rand, Log: o.Log})
	if err := d.Start(ctx); err != nil {
		return errors.Join(err, socket.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make(chan error, 3)
	var wg sync.WaitGroup
	part := func(run func() error) {
		wg.Go(func() {
			defer stop()
			errs <- run()
		})
	}
	part(func() error { return serveLinks(ctx, o.Listener, d) })
	part(func() error {
		return admin.Serve(ctx, socket, &admin.Backend{Store: s, Devices: d, Rand: o.Rand, Log: o.Log})
	})
	if err := announce(ctx, d, url, o.Ready); err != nil {
		stop()
		wg.Wait()
		return err
	}
	part(func() error { return relayServer(s, d, o).run(ctx) })
	sweeping := time.NewTicker(deviceSweep)
	defer sweeping.Stop()
	for ctx.Err() == nil {
		if err := d.Sweep(ctx); err != nil && ctx.Err() == nil {
			o.Log.Error("a sweep failed and will be tried again", "error", err)
		}
		select {
		case <-sweeping.C:
		case <-ctx.Done():
		}
	}
	wg.Wait()
	return errors.Join(<-errs, <-errs, <-errs)
}

// announce tells the person who set the relay up how to pair the first device.
func announce(ctx context.Context, d *devices.Service, url string, ready func(string, *devices.Code)) error {
	paired, _, err := d.Count(ctx)
	if err != nil {
		return err
	}
	if paired > 0 {
		ready(url, nil)
		return nil
	}
	code, err := d.PairingCode(ctx, devices.PairIn{})
	if err == nil {
		ready(url, &code)
	}
	return err
}

// serveLinks takes devices until ctx ends.
func serveLinks(ctx context.Context, l net.Listener, d *devices.Service) error {
	link := func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header["Origin"]) > 0 { // a browser: no device is one
			http.Error(w, "web pages may not connect as a device", http.StatusForbidden)
			return
		}
		if retry := linkDevice(d, w, r); retry > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((retry+time.Second-1)/time.Second)))
			http.Error(w, "too many devices connect at once", http.StatusServiceUnavailable)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", link)
	mux.HandleFunc("GET "+wire.Path, link)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: headerTimeout, MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn)}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bound, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = d.Close(bound) // the process ends anyway
		_ = s.Shutdown(bound)
	})
	err := s.Serve(l)
	if stop() {
		return fmt.Errorf("serving devices: %w", err)
	}
	<-ended
	return nil
}

// stdio is an MCP server on the relay's standard input and output.
type stdio struct {
	server    *mcp.Server
	transport mcp.Transport
}

func relayServer(s *store.Store, d *devices.Service, o RelayOptions) stdio {
	server := mcp.NewServer(&mcp.Implementation{Name: ServerName, Title: "Agent Relay devices", Version: o.Version}, &mcp.ServerOptions{
		Instructions: deviceInstructions + failureInstructions,
		Logger:       slog.New(slog.DiscardHandler), // its lines can hold arguments
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	f := &frame{store: s}
	tools := deviceTools(d)
	for i := range tools {
		t := &tools[i]
		server.AddTool(t.Definition(), func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ctx = context.WithValue(ctx, recordKey{}, &record{id: newID(o.Rand)})
			who := principal.Principal{Owner: principal.SharedOwner, ClientID: "stdio", ClientName: harnessName(req), Permissions: principal.Full()}
			out, err := f.run(ctx, t, who, req.Params.Arguments)
			if err != nil {
				return f.fail(ctx, t, who, err)
			}
			return tool.Answer(out, false), nil
		})
	}
	return stdio{server, &mcp.IOTransport{Reader: o.In, Writer: o.Out}}
}

// harnessName is what the client calls itself, as the device's human is told.
func harnessName(req *mcp.CallToolRequest) string {
	if p := req.Session.InitializeParams(); p != nil && p.ClientInfo != nil {
		return p.ClientInfo.Name
	}
	return ""
}

// run serves until the client leaves or ctx ends; neither is an error.
func (s stdio) run(ctx context.Context) error {
	err := s.server.Run(ctx, s.transport)
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
