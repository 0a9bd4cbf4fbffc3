package admin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

// maxRequest bounds the arguments of a command.
const maxRequest = 1 << 20

// Listen opens the owner's socket in the state directory, mode 0600. The caller
// must hold the state lock: then a socket that is there already was left by a
// gateway that was killed, and is replaced. Anything else of that name is
// refused. Closing the listener removes the socket.
func Listen(stateDir string) (net.Listener, error) {
	path := filepath.Join(stateDir, config.AdminSocket)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("looking at the owner's socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is not a socket: move it away, the gateway makes its owner's socket there", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("removing the socket of an earlier gateway: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("opening the owner's socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("making the owner's socket private: %w", err)
	}
	return l, nil
}

// Serve answers the owner's commands on l until ctx ends, then lets running
// ones finish for at most 5 seconds. It closes l.
func Serve(ctx context.Context, l net.Listener, b *Backend) error {
	s := &http.Server{Handler: Handler(b), ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if s.Shutdown(grace) != nil {
			s.Close()
		}
	})()
	err := s.Serve(l)
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the owner's commands: %w", err)
	}
	<-stopped
	return nil
}

// Handler answers POST /<command> with the command's result as JSON, or with
// {"error": {code, message, hint, retryable}}.
func Handler(b *Backend) http.Handler {
	mux := http.NewServeMux()
	for _, c := range table {
		if b.Clients == nil && !strings.HasPrefix(c.label(), "devices.") {
			continue // a relay that has devices alone
		}
		mux.HandleFunc("POST /"+c.label(), func(w http.ResponseWriter, r *http.Request) {
			out, err := c.serve(r.Context(), b, http.MaxBytesReader(w, r.Body, maxRequest))
			if err != nil {
				refuse(w, b, c.label(), err)
				return
			}
			answer(w, http.StatusOK, out)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, b, r.URL.Path, unknownCommand.New("The running gateway does not know this command."))
	})
	return mux
}

// unknownCommand is what an older gateway answers to a newer command line.
var unknownCommand = fault.Kind{Code: "unknown_command", Hint: "It is another version than this command line: restart the gateway."}

// Kinds lists the kinds of this package for docs/errors.md.
func Kinds() []fault.Kind { return []fault.Kind{unknownCommand} }

// wireError is a refusal on the socket.
type wireError struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Hint      string `json:"hint,omitempty"`
	Retryable bool   `json:"retryable"`
}

func refuse(w http.ResponseWriter, b *Backend, command string, err error) {
	e := fault.From(err)
	status := http.StatusUnprocessableEntity
	if errors.Is(e, fault.Internal) {
		status = http.StatusInternalServerError
		if store.IsTrouble(err) {
			e = fault.Unavailable.New("The gateway can't use its own store right now.").Because(err)
		}
		id := rand.Text()[:8]
		e.Message += " The log has the cause under id " + id + "."
		if b.Log != nil {
			b.Log.Error("an owner's command failed", slog.String("command", command), slog.String("id", id), slog.Any("error", err))
		}
	}
	answer(w, status, map[string]wireError{"error": {e.Code, e.Message, e.Hint, e.Retryable}})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the other side is gone if this fails
}
