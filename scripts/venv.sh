# Make .venv from the lock files, once. Sourced: `. scripts/venv.sh; venv runtime` or `venv dev`.
# shellcheck shell=bash

venv_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# venv LEVEL: .venv holds what LEVEL needs (runtime; dev: the checks' tools too) and Outrider itself, editable.
# The second time it reads a few files and is done. Return 1 with the reason and the fix when it cannot be made.
venv() {
  local level=$1
  case $level in runtime | dev) ;; *) echo "venv: level is runtime or dev, not '$level'" >&2; return 2 ;; esac
  _venv_fresh "$level" && return 0
  if command -v flock >/dev/null; then # two scripts started together make it once
    (flock 9 && { _venv_fresh "$level" || _venv_make "$level"; }) 9<"$venv_root/pyproject.toml"
  else
    _venv_make "$level"
  fi
}

# What LEVEL's installation was made from; a change of any of it makes it anew. The root is in it: scripts in a
# virtual environment hold its absolute path.
_venv_stamp() {
  local files=(pyproject.toml requirements.lock)
  [ "$1" = runtime ] || files+=(tests/requirements.lock)
  (cd "$venv_root" && echo "$venv_root" && cat "${files[@]}") | cksum
}

_venv_fresh() {
  local stamp=$venv_root/.venv/made-$1
  [ -e "$stamp" ] && "$venv_root/.venv/bin/python" -c '' 2>/dev/null && [ "$(cat "$stamp")" = "$(_venv_stamp "$1")" ]
}

_venv_python() {
  local python
  for python in ${OUTRIDER_PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "venv: $python lacks the venv module. On Debian or Ubuntu: apt-get install python3-venv" >&2
        return 1
      fi
      command -v "$python"
      return 0
    fi
  done
  echo "venv: no Python 3.11 or newer found. On Debian 12 or newer: apt-get install python3 python3-venv" >&2
  echo "venv: one that is not on the PATH is named by OUTRIDER_PYTHON" >&2
  return 1
}

_venv_make() {
  local level=$1 root=$venv_root python log
  local dir=$root/.venv
  if ! "$dir/bin/python" -c 'import pip' 2>/dev/null || [ "$(cat "$dir/made-in" 2>/dev/null)" != "$root" ]; then
    python=$(_venv_python) || return 1
    rm -f "$dir/made-in"
    "$python" -m venv --clear "$dir" >&2 || { echo "venv: $python could not make $dir" >&2; return 1; }
    echo "$root" >"$dir/made-in"
  fi
  echo "Installing what Outrider needs ($level) into .venv; a minute the first time …" >&2
  log=$dir/install.log
  rm -f "$dir"/made-{runtime,dev}
  if ! _venv_install "$level" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "venv: the installation failed; the above is the end of .venv/install.log" >&2
    return 1
  fi
  _venv_stamp runtime >"$dir/made-runtime"
  [ "$level" = runtime ] || _venv_stamp dev >"$dir/made-dev"
}

_venv_install() {
  _venv_pip --require-hashes -r "$venv_root/requirements.lock" &&
    { [ "$1" = runtime ] || _venv_pip --require-hashes --use-pep517 -r "$venv_root/tests/requirements.lock"; } &&
    _venv_pip --no-deps --no-build-isolation -e "$venv_root"
}

_venv_pip() {
  "$venv_root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
}
