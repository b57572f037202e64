#!/bin/sh
# Sets up .venv once, then runs the optimizer in it:   ./run.sh [USER@HOST] [flags]     (./run.sh --help)
#
#   ./run.sh                     a shipped kernel on the simulated Trainium2
#   ./run.sh ubuntu@10.0.0.1     the same on a real one, over SSH
#   ./run.sh --setup             set up only
#
# NKI_OPTIMIZER_PYTHON names the Python to build .venv with (3.10 to 3.14); NKI_OPTIMIZER_VENV another folder for it.
set -u

fail() {
    [ -t 2 ] && printf '\r\033[K' >&2
    printf '%s\n' "run.sh: $1" >&2
    exit 2
}

say() { printf '%s\n' "$1" >&2; }

# The folder of this file, also when it is started through a symbolic link.
script=$0
while [ -L "$script" ]; do
    link=$(readlink "$script")
    case $link in
        /*) script=$link ;;
        *) script=$(dirname "$script")/$link ;;
    esac
done
root=$(CDPATH='' cd "$(dirname "$script")" && pwd -P) || fail "cannot enter the folder of $0"
venv=${NKI_OPTIMIZER_VENV:-$root/.venv}
log=$venv/install.log

# A finished set-up: what was installed, from which pyproject.toml, and that it still is what a Python there would use:
# a path to this folder, and no copy of it (as `pip install .` or an older set-up leaves).
extras='test'
wanted="[$extras] $(cksum <"$root/pyproject.toml") $root"
is_ready() {
    [ -x "$venv/bin/python" ] && [ -f "$venv/.ready" ] && [ "$(cat "$venv/.ready")" = "$wanted" ] && uses_this_folder
}
uses_this_folder() {
    for site in "$venv"/lib/python3*/site-packages; do
        [ "$(cat "$site"/*nki_optimizer.pth 2>/dev/null)" = "$root" ] || return 1
        [ ! -e "$site/nki_optimizer" ] && [ ! -e "$site/nki_sim" ] || return 1
    done
}

suits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1; }
builds_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

find_python() {
    if [ -n "${NKI_OPTIMIZER_PYTHON:-}" ]; then
        suits "$NKI_OPTIMIZER_PYTHON" || fail "NKI_OPTIMIZER_PYTHON=$NKI_OPTIMIZER_PYTHON is no working Python 3.10 to 3.14"
        builds_venvs "$NKI_OPTIMIZER_PYTHON" || fail "$NKI_OPTIMIZER_PYTHON has no venv and ensurepip modules: use another one"
        python=$NKI_OPTIMIZER_PYTHON
        return
    fi
    without_venv=
    for name in python3.13 python3.12 python3.11 python3.10 python3.14 python3 python \
        /opt/homebrew/bin/python3 /usr/local/bin/python3; do
        suits "$name" || continue
        if builds_venvs "$name"; then
            python=$name
            return
        fi
        [ -n "$without_venv" ] || without_venv=$name
    done
    if [ -n "$without_venv" ]; then
        version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        fail "$without_venv cannot build a virtual environment: on Debian or Ubuntu run \`sudo apt install python$version-venv\`, then this again"
    fi
    fail "no Python 3.10 to 3.14 found: install one (Debian/Ubuntu: sudo apt install python3 python3-venv; macOS: brew install python@3.12), then run this again"
}

# Two first starts at once: the second waits for the first.
lock=$venv.setup
take_lock() {
    told=
    nameless=0
    until mkdir "$lock" 2>/dev/null; do
        [ -d "$lock" ] || fail "cannot create $lock: check the permissions and the free space of that folder"
        owner=$(cat "$lock/pid" 2>/dev/null)
        [ -n "$owner" ] || nameless=$((nameless + 1))
        # Its owner is gone, or died before it could sign.
        if [ "$nameless" -gt 5 ] || { [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; }; then
            rm -rf "$lock"
            nameless=0
            continue
        fi
        [ -n "$told" ] || say "Another set-up of $venv is under way; waiting for it."
        told=yes
        sleep 1
    done
    echo $$ >"$lock/pid"
}

installer=
drop_lock() {
    [ -n "$installer" ] && kill -TERM "-$installer" 2>/dev/null
    rm -rf "$lock"
    trap - EXIT INT TERM HUP
}

show_progress() {
    # One line that names what pip is at; only where somebody watches.
    while kill -0 "$installer" 2>/dev/null; do
        if [ -t 2 ]; then
            at=$(grep -E '^ *(Collecting|Downloading|Installing|Building|Preparing)' "$log" 2>/dev/null | tail -n 1 | cut -c 1-70)
            printf '\r\033[K  %s' "$at" >&2
        fi
        sleep 1
    done
    [ -t 2 ] && printf '\r\033[K' >&2
    return 0
}

why_pip_failed() {
    if grep -qi 'No space left on device' "$log"; then
        echo "the disk is full: free about 1 GB for $venv, then run this again"
    elif grep -qiE 'name resolution|NewConnectionError|Connection(Error| refused| reset| broken)|ProxyError|ReadTimeout|Network is unreachable|ConnectTimeout|timed out' "$log"; then
        echo "cannot reach the package index: check the network or proxy (HTTPS_PROXY, PIP_INDEX_URL), then run this again; log: $log"
    else
        echo "the installation failed: $(grep -E '^ *(ERROR|error)' "$log" | head -n 1 | cut -c 1-160); log: $log"
    fi
}

set_up() {
    find_python
    mkdir -p "$(dirname "$venv")" 2>/dev/null || fail "cannot create $(dirname "$venv"): choose another folder with NKI_OPTIMIZER_VENV"
    take_lock
    trap drop_lock EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    if is_ready; then
        drop_lock
        return
    fi
    say "Setting up $venv (first start only, about two minutes)"
    if ! suits "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        [ ! -e "$venv" ] || [ -f "$venv/pyvenv.cfg" ] || fail "$venv is there but is no virtual environment: move it away, or choose another folder with NKI_OPTIMIZER_VENV"
        "$python" -m venv --clear "$venv" >"$lock/log" 2>&1 ||
            fail "$python -m venv failed: $(tail -n 1 "$lock/log"): check the free space, or name another Python with NKI_OPTIMIZER_PYTHON"
    fi
    rm -rf "$venv/.ready" "$venv"/lib/python3*/site-packages/nki_optimizer "$venv"/lib/python3*/site-packages/nki_sim
    # In a process group of its own, so that an interrupt ends whatever pip has started as well.
    "$venv/bin/python" -c 'import os, sys; os.setpgid(0, 0); os.execv(sys.executable, [sys.executable] + sys.argv[1:])' \
        -m pip install --disable-pip-version-check --no-input -e "${root}[$extras]" >"$log" 2>&1 &
    installer=$!
    show_progress
    wait "$installer" || fail "$(why_pip_failed)"
    installer=
    say "Compiling the timing model (half a minute, once)"
    (cd "$root" && "$venv/bin/python" -c 'from nki_sim.machine_code import compile_all; compile_all()') >>"$log" 2>&1 || :
    if ! { printf '%s\n' "$wanted" >"$venv/.ready.new" && mv "$venv/.ready.new" "$venv/.ready"; }; then
        fail "cannot write $venv/.ready: check the free space"
    fi
    drop_lock
    say "Ready."
}

is_ready || set_up
if [ "${1:-}" = "--setup" ]; then
    exit 0
fi
[ $# -gt 0 ] || set -- demo
exec "$venv/bin/python" "$root/orchestrator.py" "$@"
