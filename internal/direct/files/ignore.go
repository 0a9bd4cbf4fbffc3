package files

import (
	"context"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"agentrelay/internal/direct"
)

// builtIn are names that recursive lists and searches leave out whatever
// .gitignore says.
var builtIn = []string{".git", "node_modules", ".venv", "venv", "__pycache__"}

const (
	ignoreFile    = ".gitignore"
	maxIgnoreFile = 1 << 20
)

// ignores is the rules of one .gitignore file, in front of those of the
// directories above. nil ignores nothing. Only files of the project count: not
// those above it, nor the user's own list.
type ignores struct {
	above *ignores
	base  string // the directory of the file, project-relative
	rules []ignoreRule
}

// ignoreRule is one line, as gitignore(5) has it.
type ignoreRule struct {
	again   bool // "!": not ignored after all
	dirs    bool // directories only
	path    bool // matched with the path from base, else with the name
	pattern string
	suffix  string // the pattern is * and this
	plain   bool   // the pattern is a name
}

// with puts the rules of a file in directory base in front.
func (i *ignores) with(base string, file []byte) *ignores {
	n := &ignores{above: i, base: base}
	text := strings.TrimPrefix(string(file), "\uFEFF")
	for line := range strings.SplitSeq(text, "\n") {
		if r, ok := parseIgnore(strings.TrimSuffix(line, "\r")); ok {
			n.rules = append(n.rules, r)
		}
	}
	if len(n.rules) == 0 {
		return i
	}
	return n
}

func parseIgnore(line string) (r ignoreRule, ok bool) {
	line = trimSpaces(line)
	if line == "" || line[0] == '#' {
		return r, false
	}
	if line[0] == '!' {
		r.again, line = true, line[1:]
	}
	line, r.dirs = strings.CutSuffix(line, "/")
	r.path = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return r, false
	}
	r.plain = !strings.ContainsAny(line, `*?[\`)
	if rest, found := strings.CutPrefix(line, "*"); found && !r.path && !strings.ContainsAny(rest, `*?[\`) {
		r.suffix = rest
	}
	r.pattern = line
	if !r.plain {
		r.pattern = globOf(line)
	}
	return r, r.plain || doublestar.ValidatePattern(r.pattern)
}

// trimSpaces removes the spaces at the end that are not escaped.
func trimSpaces(line string) string {
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	return line
}

// globOf writes a pattern of gitignore(5) as the library has it: braces mean
// themselves, "dir/**" is what is in dir and not dir, classes have no names.
func globOf(pattern string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\' && i+1 < len(pattern):
			b.WriteString(pattern[i : i+2])
			i++
		case c == '{' || c == '}':
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	out := namedClasses.Replace(b.String())
	if strings.HasSuffix(out, "/**") {
		out += "/*"
	}
	return out
}

var namedClasses = strings.NewReplacer(
	"[:alpha:]", "a-zA-Z", "[:digit:]", "0-9", "[:alnum:]", "a-zA-Z0-9", "[:upper:]", "A-Z", "[:lower:]", "a-z",
	"[:space:]", " \t\r\n\v\f", "[:blank:]", " \t", "[:xdigit:]", "0-9a-fA-F", "[:punct:]", "!-/:-@\\[-`{-~",
)

// match reports whether the entry at a project-relative path is ignored. The
// directories above it are judged before it.
func (i *ignores) match(rel string, dir bool) bool {
	name := path.Base(rel)
	for ; i != nil; i = i.above {
		from := rel
		if i.base != "" {
			from = strings.TrimPrefix(rel, i.base+"/")
		}
		for _, r := range slices.Backward(i.rules) {
			if r.match(from, name, dir) {
				return !r.again
			}
		}
	}
	return false
}

func (r *ignoreRule) match(rel, name string, dir bool) bool {
	if r.dirs && !dir {
		return false
	}
	subject := name
	if r.path {
		subject = rel
	}
	switch {
	case r.plain:
		return subject == r.pattern
	case r.suffix != "":
		return strings.HasSuffix(name, r.suffix)
	}
	return doublestar.MatchUnvalidated(r.pattern, subject)
}

// ignoresAbove reads the rules that hold in the directory dir: those of the
// project's own exclude file and of each directory down to dir's parent.
func ignoresAbove(ctx context.Context, t *direct.Tree, dir string) (*ignores, error) {
	var i *ignores
	add := func(base, file string) error {
		p, err := t.Find(file, direct.ToRead)
		if err != nil {
			return ctx.Err() // no such directory: no rules
		}
		defer p.Close()
		if data, ok := readIgnores(p.Dir, p.Name); ok {
			i = i.with(base, data)
		}
		return ctx.Err()
	}
	if err := add("", ".git/info/exclude"); err != nil {
		return nil, err
	}
	if dir == "" {
		return i, nil
	}
	names := strings.Split(dir, "/")
	for n := range names {
		base := path.Join(names[:n]...)
		if err := add(base, path.Join(base, ignoreFile)); err != nil {
			return nil, err
		}
	}
	return i, nil
}

// readIgnores reads a file of rules, which Git does not follow links for.
func readIgnores(dir *os.Root, name string) ([]byte, bool) {
	info, err := dir.Lstat(name)
	if err != nil {
		return nil, false
	}
	f, _, err := openEntry(dir, name, info, os.O_RDONLY)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	return data, err == nil
}

// glob is the glob argument.
type glob struct {
	pattern string
	path    bool // matched with the path, else with the name
}

// parseGlob checks a glob argument; nil selects all.
func parseGlob(pattern *string) (*glob, error) {
	if pattern == nil {
		return nil, nil
	}
	p := strings.TrimPrefix(*pattern, "./")
	switch {
	case p == "" || len(p) > MaxGlob:
		return nil, direct.Invalid("glob", "must have 1 to 1024 bytes")
	case strings.HasPrefix(p, "/"):
		return nil, direct.Invalid("glob", "must not begin with a slash: it is matched with paths below path")
	case !doublestar.ValidatePattern(p):
		return nil, direct.Invalid("glob", "is malformed: close each [ and {, and end it with no backslash")
	}
	return &glob{p, strings.Contains(p, "/")}, nil
}

// match is asked with the path below where the list began.
func (g *glob) match(below string) bool {
	switch {
	case g == nil:
		return true
	case g.path:
		return doublestar.MatchUnvalidated(g.pattern, below)
	}
	return doublestar.MatchUnvalidated(g.pattern, path.Base(below))
}
