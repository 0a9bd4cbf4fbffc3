# Installs what scripts need beside Go; to be sourced from the top directory.

# need PROGRAM PACKAGE installs a Debian package whose program is missing.
need() {
    command -v "$1" >/dev/null && return
    if ! command -v apt-get >/dev/null; then
        echo "$1 is missing and there is no apt-get to install $2 with: install it, then run this again" >&2
        exit 1
    fi
    local sudo=""
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$2" >/dev/null
}

# npm_packages DIR installs the npm packages of a lockfile. The lockfile's hash names what is
# installed, so that a second run installs nothing.
npm_packages() {
    local want
    need npm npm
    want=$(sha256sum "$1/package-lock.json" | cut -d' ' -f1)
    [ "$(cat "$1/node_modules/.lock-hash" 2>/dev/null)" != "$want" ] || return 0
    (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
    echo "$want" >"$1/node_modules/.lock-hash"
}
