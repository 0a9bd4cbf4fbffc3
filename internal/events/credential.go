package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// maxCredential is the longest credential file in bytes.
const maxCredential = 8 << 10

// credential is where a wake-up target is and what opens it.
type credential struct {
	url, token string
}

// readCredential reads the credential of a wake-up target: a regular file of the
// user that runs the gateway, mode 0600, not a link, or env:NAME. It is JSON
// with exactly the keys url and token. Its errors are for the owner and repeat
// nothing of the content.
func readCredential(ref string, getenv func(string) string) (credential, error) {
	var raw []byte
	if name, ok := strings.CutPrefix(ref, "env:"); ok {
		if raw = []byte(getenv(name)); len(raw) == 0 {
			return credential{}, fmt.Errorf("the environment variable %s is not set", name)
		}
	} else {
		var err error
		if raw, err = ReadPrivate(ref); err != nil {
			return credential{}, err
		}
	}
	c, err := parseCredential(raw)
	if err != nil {
		return credential{}, fmt.Errorf("%s %w", ref, err)
	}
	return c, nil
}

func parseCredential(raw []byte) (credential, error) {
	wrong := errors.New(`must be {"url": "https://…", "token": "…"} and nothing else`)
	var c credential
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || len(members) != 2 || members["url"] == nil || members["token"] == nil {
		return credential{}, wrong
	}
	if json.Unmarshal(members["url"], &c.url) != nil || json.Unmarshal(members["token"], &c.token) != nil || c.url == "" || c.token == "" {
		return credential{}, wrong
	}
	if strings.ContainsFunc(c.token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return credential{}, errors.New("has a token with white space or other characters that no header can carry")
	}
	return c, nil
}

// ReadPrivate reads a small file that only the user that runs us can use: regular,
// his, with mode 0600 and no link. White space around the content is left out.
func ReadPrivate(path string) ([]byte, error) {
	// O_NONBLOCK, for else opening a pipe would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%s is a link: name the file itself", path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case mode.Perm() != 0o600:
		return nil, fmt.Errorf("%s has mode %04o: run chmod 600 %s", path, mode.Perm(), path)
	case !ok || int(owner.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to another user than the one that runs the gateway", path)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxCredential+1))
	if err == nil && len(raw) > maxCredential {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxCredential)
	}
	return bytes.TrimSpace(raw), err
}
