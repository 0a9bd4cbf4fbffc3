# Checks the directory $1 and all above it, and with $2 = make makes what is
# missing. Answers ok; or refused, the reason and the next step, a line each.
set -f
umask 077
dir=$1 mode=$2 uid=$(id -u)
marker=$dir/.agent-relay

refuse() { printf 'refused\n%s\n%s\n' "$1" "$2"; exit 0; }

# look at $path: sets perms and owner.
look() {
    set -- $(ls -ldn "$path" 2>/dev/null)
    perms=${1-} owner=${3-}
    case $perms in
    d*) ;;
    l*) real=$(cd "$path" 2>/dev/null && pwd -P)
        refuse "$path is a link${real:+ to $real}." "Name the directory itself in remoteStateDir, without links." ;;
    '') refuse "$path is not there." "Run gateway hosts install, which makes it." ;;
    *)  refuse "$path is not a directory." "Name another remoteStateDir." ;;
    esac
}

# sound checks that nobody but root and the user can change what is in $path.
sound() {
    if [ "$owner" != 0 ] && [ "$owner" != "$uid" ]; then
        refuse "$path belongs to another user." "Name a remoteStateDir below directories of root or of this user."
    fi
    case $perms in
    ?????w*|????????w*)
        case $owner$perms in
        0?????????[tT]*) ;;
        *) refuse "$path can be written by other users." "Run: chmod go-w $path" ;;
        esac ;;
    esac
}

path= rest=${dir#/} made=
while [ -n "$rest" ]; do
    case $rest in
    */*) part=${rest%%/*} rest=${rest#*/} ;;
    *)   part=$rest rest= ;;
    esac
    [ -n "$part" ] || continue
    path=$path/$part made=
    if [ "$mode" = make ] && [ ! -d "$path" ] && mkdir -m 700 "$path" 2>/dev/null; then
        made=1
    elif [ "$mode" = make ] && ! ls -ldn "$path" >/dev/null 2>&1; then
        refuse "$path can't be made." "Make it for this user, with mode 0700, or name another remoteStateDir."
    fi
    look
    sound
done

private() {
    [ "$owner" = "$uid" ] || refuse "$path does not belong to this user." "Name a directory of this user as remoteStateDir."
    case $perms in
    d???------*) ;;
    *) refuse "$path can be used by other users." "Run: chmod 700 $path" ;;
    esac
}
private
if [ ! -f "$marker" ] || [ -h "$marker" ]; then
    if [ -n "$(ls -A "$dir")" ]; then
        refuse "$dir holds files that are not the gateway's." "Name a directory of its own as remoteStateDir."
    fi
    if [ "$mode" = make ]; then
        echo "The state of an Agent Relay gateway on this machine." >"$marker" ||
            refuse "$dir can't be written." "See that the disk has free space."
    fi
fi
path=$dir/bin
if [ "$mode" = make ]; then
    mkdir -m 700 "$path" 2>/dev/null
fi
look
private
echo ok
