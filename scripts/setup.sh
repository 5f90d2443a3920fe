# Sourced by scripts/test and scripts/run in the project's folder: creates .venv and installs this project into it.
# Does nothing if the wanted versions are installed. Sets VENV to the folder of the programs.

# Without bytecode files, each of the thousand starts in the tests would compile all modules (0.1 s).
unset PYTHONDONTWRITEBYTECODE

say() { printf '== %s\n' "$*"; }

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

complete() { usable "$1" && "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# The system's Python comes first: distributions build it with a profile. With 3.11, training took 8 % less CPU with
# Debian's Python than with pyenv's, and scoring one message 5 % less.
find_python() {
    for able in complete usable; do
        for python in ${PYTHON:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python}; do
            if "$able" "$python"; then
                printf '%s\n' "$python"
                return 0
            fi
        done
    done
    printf 'no Python 3.11 or later found; install one, or set its path: PYTHON=/path %s\n' "$0" >&2
    return 1
}

make_venv() {
    say "creating .venv with $("$1" --version)"
    rm -rf .venv
    if ! "$1" -m venv .venv; then
        rm -rf .venv
        printf '%s has no venv module; on Debian: apt-get install python3-venv\n' "$1" >&2
        return 1
    fi
}

# set_up run|test: install what spamnb needs to run, or also what its tests need.
set_up() {
    VENV=$PWD/.venv/bin
    if ! usable "$VENV/python"; then
        base=$(find_python) || return 1
        make_venv "$base" || return 1
    fi
    # The path is included, because a virtual environment cannot be moved.
    wanted="$PWD $("$VENV/python" --version) $(cat pyproject.toml constraints.txt | cksum)"
    [ "$(cat .venv/installed 2>/dev/null)" = "$wanted" ] && return 0
    stamp=.venv/installed extras=test,fast,plots
    if [ "$1" = run ]; then
        stamp=.venv/installed-run extras=auth,fast,console
        [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return 0
    fi
    say "installing spamnb into .venv, to $1"
    "$VENV/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]" || return 1
    printf '%s\n' "$wanted" >"$stamp"
}
