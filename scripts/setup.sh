# Sourced by scripts/test and scripts/run, in the project's folder: makes .venv and puts this project into it.
# Does nothing if it has already done so for these versions. Sets VENV to the folder of its programs.

# With it, each of some thousand starts in the tests would compile all modules anew, 0.1 s.
unset PYTHONDONTWRITEBYTECODE

say() { printf '== %s\n' "$*"; }

usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

complete() { usable "$1" && "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# The system's own first: a distribution tunes its Python by a profile, one that was compiled at home seldom is. Where
# both were 3.11, training took 8 % less CPU with Debian's than with one of pyenv's, scoring one message 5 %.
find_python() {
    for able in complete usable; do
        for python in ${PYTHON:-/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python}; do
            if "$able" "$python"; then
                printf '%s\n' "$python"
                return 0
            fi
        done
    done
    printf 'no Python 3.11 or later found; install one, or say where it is: PYTHON=/path %s\n' "$0" >&2
    return 1
}

make_venv() {
    say "making .venv with $("$1" --version)"
    rm -rf .venv
    if ! "$1" -m venv .venv; then
        rm -rf .venv
        printf '%s has no venv module; on Debian: apt-get install python3-venv\n' "$1" >&2
        return 1
    fi
}

# set_up run|test: what spamnb needs to run, or what its tests need as well.
set_up() {
    VENV=$PWD/.venv/bin
    if ! usable "$VENV/python"; then
        base=$(find_python) || return 1
        make_venv "$base" || return 1
    fi
    # The path is part of it: a virtual environment cannot be moved.
    wanted="$PWD $("$VENV/python" --version) $(cat pyproject.toml constraints.txt | cksum)"
    [ "$(cat .venv/installed 2>/dev/null)" = "$wanted" ] && return 0
    stamp=.venv/installed extras=test,fast,plots
    if [ "$1" = run ]; then
        stamp=.venv/installed-run extras=fast
        [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return 0
    fi
    say "installing spamnb into .venv, to $1"
    "$VENV/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]" || return 1
    printf '%s\n' "$wanted" >"$stamp"
}
