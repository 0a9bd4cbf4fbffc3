package ssh

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// scope has what the tokens of ssh_config(5) stand for, for one machine.
type scope struct {
	getenv                   func(string) string
	home, localUser, localID string
	localHost                string // with its domain, as gethostname says it
	alias                    string // as the owner wrote it
	host, user               string
	port                     int
	keyAlias                 string // HostKeyAlias; "" for none
	jump                     string // ProxyJump; "" for none
}

// The tokens that settings take; ssh_config(5), TOKENS.
const (
	fileTokens    = "CdhijkLlnpru"
	userTokens    = "CdhijkLlnpu"
	commandTokens = "hknpr"
)

// token is what %c stands for.
func (s scope) token(c byte) string {
	short, _, _ := strings.Cut(s.localHost, ".")
	port := strconv.Itoa(s.port)
	switch c {
	case 'C': // with %j since OpenSSH 9.6; they differ only for a host with a jump
		sum := sha1.Sum([]byte(s.localHost + s.host + port + s.user + s.jump))
		return hex.EncodeToString(sum[:])
	case 'd':
		return s.home
	case 'h':
		return s.host
	case 'i':
		return s.localID
	case 'j':
		return s.jump
	case 'k':
		if s.keyAlias != "" {
			return s.keyAlias
		}
		return s.alias
	case 'L':
		return short
	case 'l':
		return s.localHost
	case 'n':
		return s.alias
	case 'p':
		return port
	case 'r':
		return s.user
	}
	return s.localUser // 'u'
}

// expand fills in the tokens that are allowed and, with env, ${NAME}. What a
// token or a variable stands for is not looked at again.
func (s scope) expand(in, allowed string, env bool) (string, error) {
	var b strings.Builder
	for i := 0; i < len(in); i++ {
		rest := in[i:]
		switch {
		case strings.HasPrefix(rest, "%%"):
			b.WriteByte('%')
			i++
		case rest[0] == '%':
			if len(rest) < 2 || strings.IndexByte(allowed, rest[1]) < 0 {
				return "", fmt.Errorf("it has a %% that begins none of the tokens %s", tokenList(allowed))
			}
			b.WriteString(s.token(rest[1]))
			i++
		case env && strings.HasPrefix(rest, "${"):
			name, _, closed := strings.Cut(rest[2:], "}")
			if !closed || name == "" {
				return "", errors.New("it has a ${ without a name and a }")
			}
			value := s.getenv(name)
			if value == "" {
				return "", fmt.Errorf("the environment variable %s is not set for the gateway", name)
			}
			b.WriteString(value)
			i += len(name) + 2
		default:
			b.WriteByte(rest[0])
		}
	}
	return b.String(), nil
}

func tokenList(allowed string) string {
	return "%" + strings.Join(strings.Split(allowed, ""), " %")
}

// file is the path that a setting names: with ~, tokens and variables filled in.
func (s scope) file(in string) (string, error) {
	path, err := s.tilde(in)
	if err != nil {
		return "", err
	}
	return s.expand(path, fileTokens, true)
}

func (s scope) tilde(in string) (string, error) {
	if !strings.HasPrefix(in, "~") {
		return in, nil
	}
	name, rest, _ := strings.Cut(in[1:], "/")
	home := s.home
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return "", fmt.Errorf("there is no user %q for its ~", name)
		}
		home = u.HomeDir
	}
	return filepath.Join(home, rest), nil
}
