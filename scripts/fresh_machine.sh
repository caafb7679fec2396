#!/usr/bin/env bash
# Tries both entry commands on an empty machine: a minimal Debian in a folder, entered with chroot.
#
#   sudo bash scripts/fresh_machine.sh [--suite bookworm] [--folder DIR] [--as root|user|both] [--only quickstart|test] [--keep]
#
# Debian's smallest system (debootstrap --variant=minbase: no Python, no compiler) gets a clone of the last commit
# and nothing else. As root, the commands must install what they lack; as an ordinary user, they must print one line that
# does, which is then run. Prints how long each part took. Needs root, debootstrap, 15 GiB of disk in DIR (default: a
# new folder in /var/tmp), and a network; this machine's pip settings are used.
set -euo pipefail

suite=bookworm folder= who=both commands="quickstart test" keep=
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suite=$2 && shift ;;
    --folder) folder=$2 && shift ;;
    --as) who=$2 && shift ;;
    --only) commands=$2 && shift ;;
    --keep) keep=1 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit ;;
    *) echo "error: no such flag: $1 (see --help)" >&2 && exit 2 ;;
    esac
    shift
done
[ "$(id -u)" = 0 ] || { echo "error: chroot needs root: call it with sudo" >&2 && exit 1; }
command -v debootstrap >/dev/null || { echo "error: debootstrap is needed: apt install debootstrap" >&2 && exit 1; }
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${folder:-$(mktemp -d /var/tmp/fresh_machine.XXXXXX)}
mkdir -p "$folder"
[ -n "$keep" ] || trap 'rm -rf --one-file-system "$folder"' EXIT
report=()

timed() { # timed NAME COMMAND...: runs it, its output in a log, and notes how long it took
    local name=$1 started=$SECONDS status=0
    local log=$folder/${name//[^a-z0-9]/_}.log
    shift
    "$@" >"$log" 2>&1 </dev/null || status=$?
    report+=("$(printf '%-42s %5d s   %s' "$name" $((SECONDS - started)) "$([ $status = 0 ] && echo ok || echo "exit status $status")")")
    echo "${report[-1]}"
    return $status
}

bootstrap() { # the bare system, with what every machine has: a way to its package index
    debootstrap --variant=minbase "$suite" "$folder/bare" || return
    cp /etc/resolv.conf /etc/hosts "$folder/bare/etc/"
    local bundle
    bundle=$(python3 -m pip config list 2>/dev/null | sed -n "s/.*cert='\(.*\)'/\1/p" | tail -1)
    [ -z "$bundle" ] || cp -L "$bundle" "$folder/bare/etc/pip-certificates.pem"
    {
        echo "[global]"
        python3 -m pip config list 2>/dev/null | sed -n "s/^[a-z:]*\.\(index-url\|extra-index-url\|find-links\|default-timeout\)='\(.*\)'/\1 = \2/p" | sort -u
        [ -z "$bundle" ] || echo "cert = /etc/pip-certificates.pem"
    } >"$folder/bare/etc/pip.conf"
}

machine() { # machine NAME: a copy of the bare system with a clone for root and for an ordinary user
    cp -a "$folder/bare" "$folder/$1"
    chroot "$folder/$1" useradd --create-home --shell /bin/bash somebody
    local home
    for home in root home/somebody; do
        git clone -q "file://$checkout" "$folder/$1/$home/openrlhf_ebpo"
    done
    chroot "$folder/$1" chown -R somebody: home/somebody
}

inside() { # inside NAME USER COMMAND: in separate namespaces, so that nothing stays mounted or running
    unshare --mount --pid --fork --kill-child bash -c '
        root=$1 user=$2 command=$3
        mount --make-rprivate /
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        for place in $(grep -o "/[a-z][a-z0-9/_.-]*" "$root/etc/pip.conf" | sed "s#/simple\$##"); do # local indexes
            [ -d "$place" ] && mkdir -p "$root$place" && mount --bind "$place" "$root$place"
        done
        home=$([ "$user" = root ] && echo /root || echo "/home/$user")
        shell="cd $home/openrlhf_ebpo && $command"
        # not exec: this shell is the first process there, and reaps orphans as an init does
        env -i TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" su - "$user" -c "$shell"
    ' bash "$folder/$1" "$2" "$3"
}

try_as_root() {
    machine root
    local command
    for command in $commands; do
        timed "root: scripts/$command.sh" inside root root "bash scripts/$command.sh" || failed=1
    done
}

try_as_user() {
    machine user
    local log=$folder/user__first_call.log line command
    if timed "user: first call" inside user somebody "bash scripts/quickstart.sh"; then
        echo "error: the first call of an ordinary user succeeded on an empty machine" >&2 && failed=1
    fi
    line=$(sed -n 's/^  \(apt-get .*\)/\1/p' "$log")
    [ -n "$line" ] || { echo "error: it did not print the line to type; see $log" >&2 && failed=1 && keep=1 && return; }
    echo "it says: $line"
    timed "user: that line, typed by root" inside user root "$line" || failed=1
    for command in $commands; do
        timed "user: scripts/$command.sh" inside user somebody "bash scripts/$command.sh" || failed=1
    done
}

failed=
timed "debootstrap $suite" bootstrap || { trap - EXIT && echo "the log is left in $folder" >&2 && exit 1; }
[ "$who" = user ] || try_as_root
[ "$who" = root ] || try_as_user
echo
printf '%s\n' "${report[@]}"
[ -z "$failed" ] || { trap - EXIT && echo "logs and machines are left in $folder" >&2 && exit 1; }
