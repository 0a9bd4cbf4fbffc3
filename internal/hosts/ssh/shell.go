package ssh

import (
	"fmt"
	"strings"

	"agentrelay/internal/shellquote"
)

// Shell is a command line that runs script with /bin/sh, arguments as $1 and so
// on, whichever the login shell is that reads it: sh, bash, zsh, fish, csh and
// tcsh take it alike. Neither may contain a NUL byte.
func Shell(script string, args ...string) string {
	if len(args) > 0 {
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = shellquote.Word(a)
		}
		script = "set -- " + strings.Join(words, " ") + "\n" + script
	}
	if strings.IndexFunc(script, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		script = `eval "$(printf %b ` + shellquote.Word(octal(script)) + `)"`
	}
	return "exec /bin/sh -c " + portable(script)
}

// octal writes s for printf %b in printable ASCII: no shell but the last sees a
// line end or a byte that is no letter of its locale.
func octal(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '\\' {
			fmt.Fprintf(&b, `\0%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// portable is a word that all those shells read alike. Between single quotes fish
// takes a backslash and csh an exclamation mark for more than itself, so both
// stand outside of quotes, escaped, as the quote does.
func portable(s string) string {
	return "'" + strings.NewReplacer("'", `'\''`, `\`, `'\\'`, "!", `'\!'`).Replace(s) + "'"
}
