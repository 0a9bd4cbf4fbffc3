package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	xssh "golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// credentials are the keys with which to log in to one machine, gathered when the
// machine has proved itself and asks for them.
type credentials struct {
	s *settings

	agent   net.Conn // open while the keys in it may sign
	signers []xssh.Signer
	inAgent int
	notes   []string // which keys could not be used; base names, no paths
	allowed []string // what the machine takes, as it said last
	partial []string // what it took, and wanted more
}

// identity is a key file of the settings.
type identity struct {
	file   string
	public xssh.PublicKey
	signer xssh.Signer // nil where only the agent can sign
	why    string      // then: why the file can't
}

// close ends the conversation with the agent.
func (c *credentials) close() {
	if c.agent != nil {
		_ = c.agent.Close()
	}
}

// method is the login by keys. What it needs is read only when it is asked.
func (c *credentials) method(ctx context.Context) xssh.AuthMethod {
	return xssh.PublicKeysCallback(func() ([]xssh.Signer, error) {
		c.gather(ctx)
		return c.signers, nil
	})
}

// saw keeps what the machine says it takes.
func (c *credentials) saw(at *xssh.ClientAuthContext) (xssh.AuthMethod, error) {
	c.allowed, c.partial = at.AllowedMethods, at.PartialSuccessMethods
	return nil, nil
}

// gather puts the keys in the order of OpenSSH: those of the agent that the
// settings name, the others of the agent, the files. A certificate of a key goes
// before the key.
func (c *credentials) gather(ctx context.Context) {
	held := c.askAgent(ctx)
	identities := c.readIdentities()
	certificates := c.readCertificates()
	used := map[string]bool{}
	add := func(s xssh.Signer) {
		if used[string(s.PublicKey().Marshal())] {
			return
		}
		for _, cert := range certificates {
			if bytes.Equal(cert.Key.Marshal(), s.PublicKey().Marshal()) {
				if certified, err := xssh.NewCertSigner(cert, s); err == nil {
					c.signers = append(c.signers, certified)
				}
			}
		}
		c.signers = append(c.signers, s)
		used[string(s.PublicKey().Marshal())] = true
	}
	named := func(key xssh.PublicKey) bool {
		return slices.ContainsFunc(identities, func(i identity) bool { return i.public != nil && bytes.Equal(i.public.Marshal(), key.Marshal()) }) ||
			slices.ContainsFunc(certificates, func(cert *xssh.Certificate) bool { return bytes.Equal(cert.Marshal(), key.Marshal()) })
	}
	for _, s := range held {
		if named(s.PublicKey()) {
			add(s)
		}
	}
	for _, s := range held {
		if !c.s.identitiesOnly {
			add(s)
		}
	}
	c.inAgent = len(c.signers)
	for _, i := range identities {
		switch {
		case i.public != nil && used[string(i.public.Marshal())]:
		case i.signer != nil:
			add(i.signer)
		case i.why != "":
			c.notes = append(c.notes, filepath.Base(i.file)+" "+i.why)
		}
	}
}

// askAgent returns the keys of the agent.
func (c *credentials) askAgent(ctx context.Context) []xssh.Signer {
	if c.s.agent == "" {
		return nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.s.agent)
	if err != nil {
		c.notes = append(c.notes, "the SSH agent can't be reached")
		return nil
	}
	c.agent = conn
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // unix sockets have deadlines
	}
	held, err := agent.NewClient(conn).Signers()
	if err != nil {
		c.notes = append(c.notes, "the SSH agent does not answer")
	}
	return held
}

// readIdentities reads the key files that exist.
func (c *credentials) readIdentities() (all []identity) {
	for _, file := range c.s.identityFiles {
		if i, ok := readIdentity(file); ok {
			all = append(all, i)
		}
	}
	return all
}

// readIdentity reads a key file: a private key, or a public one whose private half
// is in the agent. A file that isn't there is none.
func readIdentity(file string) (i identity, ok bool) {
	i.file = file
	i.public = readPublic(file + ".pub")
	raw, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return i, i.public != nil
	case err != nil:
		i.why = "can't be read"
		return i, true
	}
	if key := readPublic(file); key != nil {
		i.public, i.why = key, "is a public key whose private half is not in the agent"
		return i, true
	}
	signer, err := xssh.ParsePrivateKey(raw)
	var encrypted *xssh.PassphraseMissingError
	info, badly := os.Stat(file)
	switch {
	case err == nil && badly == nil && info.Mode()&0o077 != 0: // OpenSSH's rule
		i.public, i.why = signer.PublicKey(), "can be read by other users (chmod 600)"
	case err == nil:
		i.signer, i.public = signer, signer.PublicKey()
	case errors.As(err, &encrypted):
		i.why = "is encrypted and not in the agent (ssh-add puts it there)"
		if i.public == nil {
			i.public = encrypted.PublicKey
		}
	case strings.HasSuffix(file, "_sk"), i.public != nil && strings.HasPrefix(i.public.Type(), "sk-"):
		i.why = "is a security key and not in the agent (ssh-add puts it there)"
	default:
		i.why = "is no private key that can be read"
	}
	return i, true
}

func readPublic(file string) xssh.PublicKey {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	key, _, _, _, err := xssh.ParseAuthorizedKey(raw)
	if err != nil {
		return nil
	}
	return key
}

// readCertificates reads those of the settings and those beside the keys.
func (c *credentials) readCertificates() (all []*xssh.Certificate) {
	files := slices.Clone(c.s.certificateFiles)
	for _, file := range c.s.identityFiles {
		files = append(files, file+"-cert.pub")
	}
	for _, file := range files {
		if cert, ok := readPublic(file).(*xssh.Certificate); ok && cert.CertType == xssh.UserCert {
			all = append(all, cert)
		}
	}
	return all
}

// refused is why the login failed.
func (c *credentials) refused(ctx context.Context, err error) *failure {
	s := c.s
	f := &failure{step: "auth", cause: err}
	notes := ""
	if len(c.notes) > 0 {
		notes = ": " + strings.Join(c.notes, "; ")
	}
	switch {
	case ctx.Err() != nil:
		f.reason = fmt.Sprintf("%s did not finish the login in time.", s.host)
		f.next = "The machine may be overloaded, or an agent key waits for a touch or a confirmation."
	case len(c.partial) > 0:
		f.reason = fmt.Sprintf("%s wants %s on top of a key, which the gateway can't give.", s.host, strings.Join(c.allowed, " or "))
		f.next = "Let this user in with a key alone: AuthenticationMethods publickey in the sshd_config there."
	case len(c.allowed) > 0 && !slices.Contains(c.allowed, "publickey"):
		f.reason = fmt.Sprintf("%s lets nobody in with a key, only with %s; the gateway has nothing but keys.", s.host, strings.Join(c.allowed, ", "))
		f.next = "Allow PubkeyAuthentication in the sshd_config there."
	case len(c.signers) == 0:
		f.reason = fmt.Sprintf("There is no key to log in to %s with%s.", s.host, notes)
		f.next = "Put a key into the agent of the gateway's user (ssh-add), or name an unencrypted one with IdentityFile. The gateway finds an agent by IdentityAgent or SSH_AUTH_SOCK."
	case strings.Contains(err.Error(), "Too many authentication failures"):
		f.reason = fmt.Sprintf("%s gave up after too many keys (%d were there to try).", s.host, len(c.signers))
		f.next = "Name the right key for this host with IdentityFile and IdentitiesOnly yes."
	default:
		f.reason = fmt.Sprintf("%s refuses the login with each of the %d keys there are (%d of the agent, %d of files)%s.", s.host, len(c.signers), c.inAgent, len(c.signers)-c.inAgent, notes)
		f.detail = fmt.Sprintf("%s refuses user %s with each of the %d keys there are (%d of the agent, %d of files)%s.", s.host, s.user, len(c.signers), c.inAgent, len(c.signers)-c.inAgent, notes)
		f.next = "Add the public key to authorized_keys of that user there. To see what is tried: ssh -v " + s.alias
	}
	return f
}
