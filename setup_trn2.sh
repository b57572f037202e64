#!/usr/bin/env bash
# One-time set-up of a Trn2 instance for NKI optimizer. Run it from your laptop; it may be run again at any time.
#
#   ssh ubuntu@<trn2-ip> 'bash -s' < setup_trn2.sh                 look, and make the work directory
#   ssh ubuntu@<trn2-ip> 'bash -s -- --check' < setup_trn2.sh      look only: changes nothing at all
#
# It installs nothing and needs no root. All that it can change is its work directory, and it says so before it does.
#
# Exit status: 0 ready to measure on the device; 2 wrong usage; 3 no Neuron SDK (the simulator may still run there:
# --remote-simulator); 4 the SDK is there, but not all that a measurement needs (device, driver, profiler);
# 5 the work directory cannot be made, or the disk is too full.

set -u

usage() {
    cat <<'USAGE'
usage: setup_trn2.sh [--check] [--root DIR] [--python PATH] [--venvs GLOB]
  --check        change nothing; say what would be changed
  --root DIR     work directory (default: ~/.nki-optimizer)
  --python PATH  a Python with the Neuron SDK, if it is in none of the usual places
  --venvs GLOB   where to look for Neuron virtual environments (default: /opt/aws_neuronx_venv_*)
USAGE
}

# Read in full before anything runs: the script itself comes through standard input, which no command may eat.
main() {
    local check=no root="${HOME:-}/.nki-optimizer" python='' venvs='/opt/aws_neuronx_venv_*'
    while [ $# -gt 0 ]; do
        case "$1" in
            --check) check=yes ;;
            --root | --python | --venvs)
                if [ $# -lt 2 ]; then
                    echo "setup_trn2.sh: $1 needs a value" >&2
                    return 2
                fi
                case "$1" in
                    --root) root="$2" ;;
                    --python) python="$2" ;;
                    --venvs) venvs="$2" ;;
                esac
                shift ;;
            --) ;;
            -h | --help) usage; return 0 ;;
            *) echo "setup_trn2.sh: unknown argument '$1'" >&2; usage >&2; return 2 ;;
        esac
        shift
    done
    case "$root" in
        /?*) ;;
        *) echo "setup_trn2.sh: the work directory must be an absolute path, not '$root'" >&2; return 2 ;;
    esac
    # Log-ins without a terminal often lack the Neuron tools in their PATH.
    PATH="$PATH:/opt/aws/neuron/bin"

    local table='' sdk=no judge=yes device=no profiler=no room=yes
    find_sdk
    find_device
    find_tools
    prepare_directory
    check_host
    printf '\n%-22s %-8s %s\n' 'WHAT' 'STATE' 'FOUND'
    printf '%s' "$table"
    printf '\n'
    conclude
}

# row WHAT STATE FOUND: one line of the summary. STATE: ok, missing, warning or note.
row() {
    table="$table$(printf '%-22s %-8s %s' "$1" "$2" "$3")
"
}

# The first candidate that has both the SDK and what the judge needs; the same order in which the optimizer looks.
find_sdk() {
    local candidate facts='' able='' with_sdk=''
    local -a candidates=()
    if [ -n "$python" ]; then
        candidates=("$python")
    else
        if [ -n "${VIRTUAL_ENV:-}" ]; then candidates+=("$VIRTUAL_ENV/bin/python"); fi
        while IFS= read -r candidate; do
            candidates+=("$candidate/bin/python")
        done < <(compgen -G "$venvs" | LC_ALL=C sort -rV)
        if candidate="$(command -v python3)"; then candidates+=("$candidate"); fi
    fi
    for candidate in "${candidates[@]+"${candidates[@]}"}"; do
        facts="$(python_facts "$candidate")" || continue
        if [ -z "$able" ]; then able="$candidate"; fi
        if [ "$(fact sdk "$facts")" != yes ]; then continue; fi
        sdk=yes
        if [ -z "$with_sdk" ]; then with_sdk="$candidate"; fi
        if [ -n "$(fact numpy "$facts")" ] && [ -n "$(fact ml_dtypes "$facts")" ]; then
            with_sdk="$candidate"
            break
        fi
    done
    python="${with_sdk:-$able}"
    if [ $sdk = no ]; then
        row 'Neuron SDK' missing "no Python with nki or neuronx-cc in $venvs, the active environment or python3"
    fi
    if [ -z "$python" ]; then
        row 'Python' missing 'none from 3.10 on that runs'
        return
    fi
    facts="$(python_facts "$python")"
    if [ $sdk = yes ]; then row 'Neuron SDK' ok "$(fact sdk_version "$facts")"; fi
    row 'Python' ok "$(fact version "$facts") ($python)"
    local name value
    for name in nki neuronx-cc numpy ml_dtypes; do
        value="$(fact "$name" "$facts")"
        if [ -n "$value" ]; then
            row "$name" ok "$value"
        elif [ "$name" = numpy ] || [ "$name" = ml_dtypes ]; then
            judge=no
            row "$name" missing "the judge needs it: $python -m pip install $name"
        elif [ $sdk = yes ]; then
            row "$name" note 'not in this environment'
        fi
    done
}

fact() { # fact NAME FACTS
    printf '%s\n' "$2" | sed -n "s/^$1=//p" | head -n 1
}

# What a Python has, as NAME=VALUE lines; fails when it does not run or is too old. Imports nothing heavy.
python_facts() {
    "$1" -I -B - 2>/dev/null <<'PYTHON'
import sys
if sys.version_info < (3, 10):
    sys.exit(1)
from importlib import metadata, util
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
# AWS Neuron SDK release notes: the SDK that each NKI came with.
releases = {"0.2": "2.27 or 2.28", "0.3": "2.29", "0.4": "2.30", "0.5": "2.31", "0.6": "2.32", "0.7": "2.33"}
nki, compiler = version("nki"), version("neuronx-cc")
# The packages called nki 0.0.1 and neuronx-cc 1.0.post1 on PyPI are empty placeholders.
real = util.find_spec("neuronxcc") is not None or (util.find_spec("nki") is not None and not nki.startswith("0.0."))
dialect = ".".join(nki.split(".")[:2])
release = releases.get({"0.1": "0.2"}.get(dialect, dialect), "")  # SDK 2.27 calls its wheel of NKI 0.2 nki 0.1.0
print("sdk=" + ("yes" if real else "no"))
print("sdk_version=" + (f"{release} (told by its NKI {nki})" if release else f"unknown (nki {nki or 'absent'}, "
                        f"neuronx-cc {compiler or 'absent'})"))
print("version=" + ".".join(map(str, sys.version_info[:3])))
for name in ("nki", "neuronx-cc", "numpy", "ml_dtypes"):
    found = version(name)
    if found or util.find_spec({"neuronx-cc": "neuronxcc"}.get(name, name)) is not None:
        print(f"{name}={found or 'version not recorded'}")
PYTHON
}

driver_file="${NEURON_DRIVER_VERSION_FILE:-/sys/module/neuron/version}"

find_device() {
    local text cores
    if ! command -v neuron-ls >/dev/null; then
        row 'Neuron devices' missing 'neuron-ls is not installed (package aws-neuronx-tools)'
    elif ! text="$(neuron-ls </dev/null 2>&1)"; then
        row 'Neuron devices' missing "neuron-ls: $(printf '%s\n' "$text" | sed '/^[[:space:]]*$/d' | tail -n 1)"
    else
        # One table row per device: | number | cores | ...
        cores="$(printf '%s\n' "$text" | awk -F'|' '$2 ~ /^ *[0-9]+ *$/ && $3 ~ /^ *[0-9]+ *$/ {n++; c += $3}
                                                     END {if (n) print n " devices, " c " cores"}')"
        if [ -n "$cores" ]; then
            device=yes
            row 'Neuron devices' ok "$cores, $(printf '%s\n' "$text" | sed -n 's/^instance-type: *//p' | head -n 1)"
        else
            row 'Neuron devices' missing 'neuron-ls lists none'
        fi
    fi
    # modinfo would tell the version on disk, which after an update is not the one that runs.
    if [ -r "$driver_file" ]; then
        row 'Neuron driver' ok "$(cat "$driver_file")"
    else
        row 'Neuron driver' missing 'the kernel module neuron is not loaded (package aws-neuronx-dkms)'
    fi
}

package_version() {
    if command -v dpkg-query >/dev/null; then
        # shellcheck disable=SC2016  # ${Version} is for dpkg-query, not for this shell
        dpkg-query -W -f='${Version}' "$1" 2>/dev/null </dev/null
    elif command -v rpm >/dev/null; then
        rpm -q --queryformat '%{VERSION}' "$1" 2>/dev/null </dev/null || return 1
    fi
}

find_tools() {
    local name text runtime
    runtime="$(package_version aws-neuronx-runtime-lib)"
    if [ -n "$runtime" ]; then
        row 'Neuron runtime' ok "$runtime"
    elif compgen -G '/opt/aws/neuron/lib/libnrt.so*' >/dev/null; then
        row 'Neuron runtime' ok 'installed, version not recorded'
    else
        row 'Neuron runtime' missing 'package aws-neuronx-runtime-lib'
    fi
    for name in neuron-explorer neuron-profile; do
        if command -v "$name" >/dev/null; then
            profiler=yes
            text="$("$name" --version </dev/null 2>&1 | sed '/^[[:space:]]*$/d' | head -n 1)"
            row "$name" ok "${text:-version not told} ($(command -v "$name"))"
        else
            row "$name" note 'not installed'
        fi
    done
    if [ $profiler = no ]; then row 'profiler' missing 'one of the two is needed (package aws-neuronx-tools)'; fi
}

# 4 GB: the largest problems keep inputs, references and captures of some hundred MB at a time.
least_mb=4096

prepare_directory() {
    local parent="$root" free
    if [ -d "$root" ]; then
        if [ ! -w "$root" ]; then
            room=no
            row 'work directory' missing "$root belongs to somebody else"
        elif [ -n "$(find "$root" -maxdepth 0 -perm /077 2>/dev/null)" ]; then
            if [ $check = yes ]; then
                row 'work directory' warning "$root is open to others; without --check it would be closed (chmod 700)"
            else
                echo "closing $root to other users (chmod 700)"
                chmod 700 "$root" && row 'work directory' ok "$root (now closed to others)"
            fi
        else
            row 'work directory' ok "$root"
        fi
    elif [ $check = yes ]; then
        row 'work directory' note "$root would be made without --check"
    else
        echo "making the work directory $root, for you only"
        if (umask 077 && mkdir -p "$root"); then
            row 'work directory' ok "$root (new)"
        else
            room=no
            row 'work directory' missing "$root cannot be made"
        fi
    fi
    while [ ! -d "$parent" ]; do parent="$(dirname "$parent")"; done
    free="$(df -Pm "$parent" 2>/dev/null | awk 'NR == 2 {print $4}')"
    if [ -z "$free" ]; then
        row 'free disk' warning "df does not tell for $parent"
    elif [ "$free" -lt $least_mb ]; then
        room=no
        row 'free disk' missing "$free MB on $parent; at least $least_mb MB are needed"
    else
        row 'free disk' ok "$free MB on $parent"
    fi
}

check_host() {
    if [ -r /etc/systemd/logind.conf ] && grep -Eqs '^[[:space:]]*KillUserProcesses[[:space:]]*=[[:space:]]*(yes|true|1|on)' \
        /etc/systemd/logind.conf /etc/systemd/logind.conf.d/*.conf; then
        row 'long jobs' warning 'systemd ends your processes when you log out: loginctl enable-linger, or evaluations die'
    fi
    if command -v bwrap >/dev/null; then
        row 'bubblewrap' ok "$(bwrap --version 2>/dev/null </dev/null)"
    else
        row 'bubblewrap' note 'not installed; kernels run without its additional isolation'
    fi
}

conclude() {
    local hint=''
    case "$python" in
        '' | /opt/aws_neuronx_venv_*/bin/python | "$(command -v python3)") ;;
        *) hint=" with --remote-python $python" ;;
    esac
    if [ $room = no ]; then
        echo 'NOT READY: no usable work directory or too little disk (see above).'
        return 5
    elif [ $sdk = no ]; then
        echo "NO NEURON SDK: this machine cannot measure on a device. With numpy and ml_dtypes it can simulate: --remote-simulator$hint"
        return 3
    elif [ $device = no ] || [ $profiler = no ] || [ $judge = no ] || [ ! -r "$driver_file" ]; then
        echo "INCOMPLETE: the SDK is here, but see the lines marked missing. Until then: --remote-simulator$hint"
        return 4
    fi
    echo "READY: ./run.sh <this host>$hint"
    if [ $check = yes ] && [ ! -d "$root" ]; then
        echo "(the work directory is made on first use, or by running this without --check)"
    fi
    return 0
}

main "$@"
exit $?
