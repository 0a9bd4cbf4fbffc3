package channel

import (
	"context"
	"path"
	"strings"
)

// RemoteDir is the private state directory of a host that is reached by commands.
// It implements [RemoteFiles].
type RemoteDir struct {
	// Link is a connection to the host.
	Link scripts
	// Path is the directory (remoteStateDir).
	Path string
}

// writeScript writes standard input to the file $1/$2/$3; $2 may be empty. $4 makes
// the name of the unfinished file.
const writeScript = `umask 077
d=$1
` + stateDir + `if [ -n "$2" ]; then d=$1/$2
` + checkDir + `fi
cd -- "$d" || exit 1
if [ -L "$3" ]; then echo '! file'; exit; fi
if [ -e "$3" ]; then
  [ -f "$3" ] && [ -O "$3" ] || { echo '! file'; exit; }
  case $(ls -ld -- "$3") in -rw-------*|-r--------*) ;; *) echo '! file'; exit ;; esac
fi
set -C
cat > "$4" && chmod 600 "$4" && { sync "$4" 2>/dev/null || :; } && mv -f -- "$4" "$3" || { rm -f -- "$4"; exit 1; }`

// WritePrivate implements [RemoteFiles] for paths of one or two parts. What is in
// the file's place already must be a private file too. The error's reason is for
// the owner.
func (r *RemoteDir) WritePrivate(ctx context.Context, relPath string, content []byte) error {
	dir, name := path.Split(relPath)
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	temporary := "." + newName() + ".tmp"
	_, err := runScript(ctx, r.Link, writeScript, []string{r.Path, strings.TrimSuffix(dir, "/"), name, temporary}, content)
	return err
}
