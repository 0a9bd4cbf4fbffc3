// Package config owns the gateway's config file: its keys, their defaults, the
// rules a value must follow, and the places where the file and the state
// directory lie when nobody says otherwise.
//
// It promises that a [Config] from [Load] has passed every rule, that its local
// paths are absolute and clean, that a bad file is answered with all of its
// problems at once (key, line, what to write instead), and that no value that
// could be a secret appears in a problem. The config holds no secret itself:
// secrets are named by file or by environment variable.
//
// It leaves to others what the values mean: it opens no socket, reads no secret
// and does not ask whether a directory exists.
package config

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strconv"
	"time"
)

// DefaultPort is where the gateway listens on loopback.
const DefaultPort = 6768

// Config is the config file of the gateway. Every key is optional.
type Config struct {
	// The address of the JSON Schema of this file, for editors. The gateway does not read it.
	Schema string `json:"$schema,omitempty"`
	// The address under which clients reach this gateway: an https origin without a path, such as https://gateway.example.com. For clients on this machine alone it may be http://127.0.0.1:<port> or http://localhost:<port>, and http://127.0.0.1:<port> is the default. Clients are given this address with /mcp behind it.
	PublicBaseURL string `json:"publicBaseUrl" jsonschema:"pattern=^https?://[^/?#]+/?$"`
	// The port to listen on, on loopback only: an HTTPS proxy of yours stands in front of it.
	Port int `json:"port" jsonschema:"minimum=1,maximum=65535,default=6768"`
	// Whether all authorised clients share one directory of peers, one mailbox and all other state. With false each OAuth client has a domain of its own and can't reach the others.
	SharedOwner bool `json:"sharedOwner" jsonschema:"default=false"`
	// The directory of the database, the lock and the keys, mode 0700, on a local disk. The default is $XDG_STATE_HOME/agent-relay, else ~/.local/state/agent-relay.
	StateDir string `json:"stateDir"`
	// The file with the owner's password, mode 0600. The default is owner.json in the state directory.
	OwnerTokenFile string `json:"ownerTokenFile"`

	// Who may log in with OAuth.
	OAuth OAuth `json:"oauth"`
	// The mailbox of the peers.
	Mailbox Mailbox `json:"mailbox"`
	// How clients are told of new mail.
	Events Events `json:"events"`
	// The groups of tools that clients see. A change is read at the next start, and clients see it after they refresh their list of tools.
	Tools Tools `json:"tools"`

	// Addresses (10.0.0.7) or networks (10.0.0.0/8) of reverse proxies whose X-Forwarded-For header is believed. The default is this machine.
	TrustedProxies []string `json:"trustedProxies"`
	// Web origins, besides the gateway's own and those of its clients, whose pages may call it from a browser, such as https://inspector.example.com.
	AllowedOrigins []string `json:"allowedOrigins"`
	// Host names, besides that of publicBaseUrl and those of this machine, under which requests are answered. Without scheme and port.
	AllowedHosts []string `json:"allowedHosts"`

	// The record of what was done, by which client.
	Audit Audit `json:"audit"`
	// The database.
	Store Store `json:"store"`
	// Copies of everything that the gateway can't make again.
	Backup Backup `json:"backup"`
	// The rules for connections from the gateway to the internet.
	Safedial Safedial `json:"safedial"`
	// The log on standard error.
	Log Log `json:"log"`

	// How agents are dispatched to the Paseo daemons of this machine and of the hosts.
	Agents Agents `json:"agents"`
	// The address of the local Paseo daemon; http://127.0.0.1:6767 is the default.
	UpstreamURL string `json:"upstreamUrl,omitempty"`
	// The Paseo command. Not needed any more: the gateway speaks to the daemon itself.
	PaseoCommand string `json:"paseoCommand,omitempty"`
	// The directories of this machine in which projects may lie, and agents may be given work.
	AllowedRoots []string `json:"allowedRoots"`
	// The projects of this machine whose files and commands clients may use.
	Direct Direct `json:"direct"`
	// How commands run in the projects of this machine.
	Commands Commands `json:"commands"`
	// How whole files move between projects and clients.
	Transfers Transfers `json:"transfers"`
	// Further machines, reached over SSH.
	Hosts []Host `json:"hosts"`
	// Webhooks that wake a peer when it has mail.
	PeerWakeTargets []WakeTarget `json:"peerWakeTargets"`

	proxies []netip.Prefix
	file    string
}

// OAuth is the "oauth" key.
type OAuth struct {
	// Redirect addresses that clients may use besides those of the known clients and loopback: exact, or ending the path in one {id} segment, such as https://app.example.com/oauth/{id}.
	Redirects []string `json:"redirects"`
}

// Mailbox is the "mailbox" key.
type Mailbox struct {
	// How many messages may be sent in an hour.
	Limits Limits `json:"limits"`
}

// Limits bounds how many messages are sent in an hour, so that two agents that
// answer each other for ever are stopped.
type Limits struct {
	// Between two peers in an hour, both directions together; 0 is no limit.
	PairPerHour int `json:"pairPerHour" jsonschema:"minimum=0,maximum=1000000,default=60"`
	// By all peers of an owner in an hour; 0 is no limit.
	OwnerPerHour int `json:"ownerPerHour" jsonschema:"minimum=0,maximum=1000000,default=600"`
}

// Events is the "events" key.
type Events struct {
	// How long a subscription lives when its client asks for no time of its own: a number and s, m, h or d. A client that asks for no end gets this, and at least 7 days.
	DefaultTTL string `json:"defaultTtl" jsonschema:"pattern=^[1-9][0-9]{0\\,5}[smhd]$,default=30d"`
	// The shortest life of a subscription, whatever its client asks for.
	MinTTL string `json:"minTtl" jsonschema:"pattern=^[1-9][0-9]{0\\,5}[smhd]$,default=1m"`
	// The longest life of a subscription, whatever its client asks for.
	MaxTTL string `json:"maxTtl" jsonschema:"pattern=^[1-9][0-9]{0\\,5}[smhd]$,default=365d"`
	// How many subscriptions an owner may have at once.
	MaxSubscriptions int `json:"maxSubscriptions" jsonschema:"minimum=1,maximum=100000,default=1000"`
	// How many callbacks at one host may be verified in a minute.
	ChallengesPerMinute int `json:"challengesPerMinute" jsonschema:"minimum=1,maximum=100000,default=120"`
	// After how many days the record of a delivery is removed.
	KeepDays int `json:"keepDays" jsonschema:"minimum=1,maximum=36500,default=90"`
	// The numbers of the errors of MCP Events: sketch are those that ChatGPT knows, sep those of the draft SEP-3415.
	ErrorCodes string `json:"errorCodes" jsonschema:"enum=sketch,enum=sep,default=sketch"`

	ttl, minTTL, maxTTL time.Duration
}

// TTL is DefaultTTL, MinTTL and MaxTTL, parsed.
func (e Events) TTL() (standard, least, most time.Duration) { return e.ttl, e.minTTL, e.maxTTL }

// Tools is the "tools" key.
type Tools struct {
	// The seven tools of the peer mailbox.
	Mailbox bool `json:"mailbox" jsonschema:"default=true"`
	// The tools for files and commands.
	Direct bool `json:"direct" jsonschema:"default=true"`
	// The tools that dispatch work to agents.
	Agents bool `json:"agents" jsonschema:"default=true"`
	// The tools of paired devices.
	Devices bool `json:"devices" jsonschema:"default=true"`
}

// Agents is the "agents" key.
type Agents struct {
	// Where the password of the local Paseo daemon is, if it has one: a file of mode 0600 (a path, or file:<path>), or env:<NAME>.
	PasswordFile string `json:"passwordFile,omitempty"`
	// Whether clients may switch on settings by which an agent approves its own actions, such as auto_accept.
	AllowAutoAccept bool `json:"allowAutoAccept" jsonschema:"default=false"`
	// Whether clients may prompt an agent that waits for a permission, which cancels the question.
	PromptOverPermission bool `json:"promptOverPermission" jsonschema:"default=false"`
}

// Audit is the "audit" key.
type Audit struct {
	// After how many days an entry is removed.
	KeepDays int `json:"keepDays" jsonschema:"minimum=1,maximum=36500,default=365"`
}

// Store is the "store" key.
type Store struct {
	// Whether the state directory may lie on a network file system, where a crash or a second machine can damage the database.
	AllowNetworkFilesystem bool `json:"allowNetworkFilesystem" jsonschema:"default=false"`
}

// Backup is the "backup" key.
type Backup struct {
	// The directory of the backups; one on another disk survives the loss of this one. The default is backups in the state directory.
	Dir string `json:"dir"`
	// How often the running gateway makes one by itself: a number and s, m, h or d; off for never.
	Every string `json:"every" jsonschema:"pattern=^([1-9][0-9]{0\\,5}[smhd]|off)$,default=1d"`
	// How many of those that the gateway makes by itself are kept. Those that you make with gateway backup stay until you remove them.
	Keep int `json:"keep" jsonschema:"minimum=1,maximum=10000,default=7"`

	every time.Duration
}

// Interval is Every, parsed; 0 is never.
func (b Backup) Interval() time.Duration { return b.every }

// Safedial is the "safedial" key.
type Safedial struct {
	// Whether the gateway may connect to this machine when a client names an address, and over http. For tests only.
	AllowLoopback bool `json:"allowLoopback" jsonschema:"default=false"`
}

// Log is the "log" key.
type Log struct {
	// The least important line that is written.
	Level string `json:"level" jsonschema:"enum=debug,enum=info,enum=warn,enum=error,default=info"`
	// The form of a line. Without it: text on a terminal, else json.
	Format string `json:"format,omitempty" jsonschema:"enum=text,enum=json"`
}

// Direct is the "direct" key of the config and of a host.
type Direct struct {
	// At most 64 projects.
	Projects []Project `json:"projects" jsonschema:"maxItems=64"`
}

// Project is a directory whose files and commands clients may use.
type Project struct {
	// The name that clients use for it.
	ID string `json:"id" jsonschema:"required,pattern=^[A-Za-z0-9][A-Za-z0-9_-]{0\\,63}$"`
	// What people read. The default is the id.
	Name string `json:"name" jsonschema:"maxLength=100"`
	// The directory, absolute.
	Path string `json:"path" jsonschema:"required"`
	// Whether files may be read.
	Read bool `json:"read" jsonschema:"default=true"`
	// Whether files may be written.
	Write bool `json:"write" jsonschema:"default=false"`
	// Which commands may run: none, those in commands, or any.
	CommandMode string `json:"commandMode" jsonschema:"enum=disabled,enum=registered,enum=full,default=disabled"`
	// The commands of the registered mode.
	Commands []Command `json:"commands" jsonschema:"maxItems=64"`
}

func (p *Project) setDefaults() {
	*p = Project{Read: true, CommandMode: "disabled", Commands: []Command{}}
}

// Commands is the "commands" key.
type Commands struct {
	// The PATH of commands. Without it, the one that your login shell has.
	Path string `json:"path,omitempty"`
	// Names of the gateway's environment variables that commands get besides those every program needs (HOME, LANG and the like). Anything else may be a secret of the gateway and is kept from them.
	PassEnvironment []string `json:"passEnvironment" jsonschema:"maxItems=128"`
	// How many commands an owner may have running at once.
	RunningPerOwner int `json:"runningPerOwner" jsonschema:"minimum=1,maximum=1000,default=16"`
	// How many commands may run at once, of all owners.
	RunningPerHost int `json:"runningPerHost" jsonschema:"minimum=1,maximum=1000,default=32"`
	// How many bytes of one command's output are kept: of a longer one the beginning and the end.
	OutputBytes int `json:"outputBytes" jsonschema:"minimum=65536,maximum=1073741824,default=16777216"`
	// How many bytes of output are kept of all commands that have ended; the oldest goes first.
	StoredBytes int `json:"storedBytes" jsonschema:"minimum=1048576,maximum=1099511627776,default=2147483648"`
	// After how many days the output of a command is removed. That it ran, and how it ended, stays.
	KeepDays int `json:"keepDays" jsonschema:"minimum=1,maximum=3650,default=30"`
}

// Transfers is the "transfers" key.
type Transfers struct {
	// How many bytes a file may have that is exported or imported.
	MaxFileBytes int `json:"maxFileBytes" jsonschema:"minimum=1,maximum=1099511627776,default=1073741824"`
	// How many bytes of files may wait in the state directory, with a link or on their way into a project.
	SpoolBytes int `json:"spoolBytes" jsonschema:"minimum=1,maximum=17592186044416,default=8589934592"`
	// How many transfers of an owner may be under way or have a link that works.
	PerOwner int `json:"perOwner" jsonschema:"minimum=1,maximum=10000,default=64"`
	// How long a download link works: a number and s, m, h or d.
	LinkLife string `json:"linkLife" jsonschema:"pattern=^[1-9][0-9]{0\\,5}[smhd]$,default=10m"`

	linkLife time.Duration
}

// Link is LinkLife, parsed.
func (t Transfers) Link() time.Duration { return t.linkLife }

// Command is one registered command of a project.
type Command struct {
	// The name that clients use for it.
	Name string `json:"name" jsonschema:"required,pattern=^[A-Za-z0-9][A-Za-z0-9_-]{0\\,63}$"`
	// The program and its arguments.
	Argv []string `json:"argv" jsonschema:"required,minItems=1,maxItems=64"`
}

// Host is a machine that the gateway reaches over SSH.
type Host struct {
	// The name that clients use for it; local and mac are this machine.
	ID string `json:"id" jsonschema:"required,pattern=^[a-z][a-z0-9_-]{0\\,31}$"`
	// What people read.
	Name string `json:"name" jsonschema:"required,minLength=1,maxLength=80"`
	// How it is reached.
	Transport string `json:"transport" jsonschema:"required,enum=ssh"`
	// Where it is: ssh://[user@]host[:port]. The host may be a name from ~/.ssh/config, or an IPv6 address in brackets. Behind it, ?daemonPort=n or ?daemonSocket=/path is where the Paseo daemon listens there; 6767 is the default.
	Target string `json:"target" jsonschema:"required,maxLength=400,pattern=^ssh://"`
	// The directories of that machine in which agents may be given work.
	AllowedRoots []string `json:"allowedRoots" jsonschema:"required,minItems=1,maxItems=128"`
	// A private directory on that machine for the gateway's worker and its sockets.
	RemoteStateDir string `json:"remoteStateDir" jsonschema:"required,maxLength=79,pattern=^/[A-Za-z0-9/._-]+$"`
	// Where on the gateway's machine the password of that machine's Paseo daemon is, if it has one: as in agents.passwordFile.
	DaemonPasswordFile string `json:"daemonPasswordFile,omitempty"`
	// Not needed any more: nothing runs under Node there.
	NodeCommand string `json:"nodeCommand,omitempty"`
	// The projects of that machine whose files and commands clients may use.
	Direct Direct `json:"direct"`
}

func (h *Host) setDefaults() {
	*h = Host{AllowedRoots: []string{}, Direct: Direct{Projects: []Project{}}}
}

// WakeTarget is a webhook that wakes one peer.
type WakeTarget struct {
	// Whose peer it is: local-owner:shared, or local-owner:<clientId>.
	Owner string `json:"owner" jsonschema:"required,pattern=^local-owner:.+$"`
	// The peer.
	PeerID string `json:"peerId" jsonschema:"required,pattern=^[A-Za-z0-9][A-Za-z0-9._:-]{0\\,127}$"`
	// The generation of the peer; another one is not woken.
	Generation int `json:"generation" jsonschema:"required,minimum=1"`
	// The name of the routine at the receiver.
	RoutineID string `json:"routineId" jsonschema:"required,pattern=^[A-Za-z0-9][A-Za-z0-9._:-]{0\\,127}$"`
	// Where the address and the key of the webhook are: a file of mode 0600 (a path, or file:<path>), or env:<NAME>.
	CredentialFile string `json:"credentialFile" jsonschema:"required"`
	// How the receiver knows the gateway: bearer sends the token in the Authorization header (a Grok Bot routine), standard-webhooks signs with it, and then it is a whsec_ secret (a Grok automation).
	Scheme string `json:"scheme" jsonschema:"enum=bearer,enum=standard-webhooks,default=bearer"`
}

func (t *WakeTarget) setDefaults() { *t = WakeTarget{Scheme: "bearer"} }

// MCPURL is the address that clients are given, and the OAuth resource.
func (c *Config) MCPURL() string { return c.PublicBaseURL + "/mcp" }

// Loopback reports whether only clients on this machine can reach PublicBaseURL.
func (c *Config) Loopback() bool {
	return c.PublicBaseURL == "http://127.0.0.1:"+strconv.Itoa(c.Port) || c.PublicBaseURL == "http://localhost:"+strconv.Itoa(c.Port)
}

// File is the absolute path of the file that the config was loaded from; "" when
// there was none.
func (c *Config) File() string { return c.file }

// Proxies is TrustedProxies, parsed. The caller must not change it.
func (c *Config) Proxies() []netip.Prefix { return c.proxies }

// JSON is the config as a file: every key with its effective value. It can be
// shown to anybody who may know the owner's paths, for a config holds no secret.
func (c *Config) JSON() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(c); err != nil {
		panic(err) // strings, numbers and booleans always encode
	}
	return b.Bytes()
}
