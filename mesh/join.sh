#!/bin/sh
# Make this machine a worker of an Outrider harness: install Outrider, join with a token, start the worker.
#
# The harness serves this script with the values below filled in. In a checkout they are empty, and Outrider is
# installed from the checkout. POSIX sh; needs Python 3.11 or newer with venv, and no rights.
#
# shellcheck disable=SC2016 # backquotes in messages are only that
HARNESS=''       # a short name for the harness: a machine can be the worker of several
ENDPOINTS=''     # of its join listener, host:port, in the order to try
WHEEL=''         # the file name of its own wheel
WHEEL_SHA256=''
WHY=''           # there is no wheel
INDEX_SHA256=''  # of the list of wheels that it has for others, empty where it has none

set -u

usage() {
  cat <<'USAGE'
usage: sh join.sh [OPTION]... TOKEN

Makes this machine a worker of the harness that made TOKEN: installs Outrider in a folder of its own, joins, starts
the worker in the background and waits until it is connected. Run again, it says what is already there, and starts
what does not run. TOKEN may be -, to be read from standard input, or be in $OUTRIDER_JOIN
(or $OUTRIDER_TOKEN).

  --name NAME       the worker's name; else one made of the hostname
  --scratch FOLDER  where the worker works
  --user NAME       where root runs this: the user whose files agents may touch, and as whom all but the mesh's
                    interface runs
  --as-root         where root runs this: let agents run their code as root
  --from URL        where to fetch from, such as http://192.0.2.1:4601; else the harness's endpoints are tried
  --wait SECONDS    how long to wait for the connection, 60
  --help            this

Environment: OUTRIDER_PYTHON names a Python that is not on the PATH, OUTRIDER_WORKER_HOME the folder to install in,
else $XDG_DATA_HOME/outrider-worker, and /opt/outrider-worker for root. HTTP_PROXY and the like are kept to.

Codes: 0 connected, 1 failed, 2 used wrongly, 3 refused by the harness, 4 the harness is not reachable,
130 interrupted.
USAGE
}

say() { printf '%s\n' "$*"; }
fail() { # CODE MESSAGE...
  code=$1
  shift
  printf 'join.sh: %s\n' "$*" >&2
  exit "$code"
}
wrong() { fail 2 "$*; see sh join.sh --help"; }

# Arguments. Those to hand on when the token has to leave the command line are kept in $@.

token=${OUTRIDER_JOIN:-${OUTRIDER_TOKEN:-}}
unset OUTRIDER_JOIN OUTRIDER_TOKEN
given=''
name='' scratch='' as_root='' owner='' from='' wait=60

value() { # OPTION HOW-MANY-ARE-LEFT VALUE
  if [ "$2" -lt 2 ] || [ -z "$3" ]; then wrong "$1 needs a value"; fi
}

count=$#
while [ "$count" -gt 0 ]; do
  option=$1
  case $option in
  --name=* | --scratch=* | --user=* | --from=* | --wait=*) # as two
    shift
    set -- "${option%%=*}" "${option#*=}" "$@"
    count=$((count + 1))
    continue
    ;;
  --name | --scratch | --user | --from | --wait)
    value "$option" "$count" "${2:-}"
    case $option in
    --name) name=$2 ;;
    --scratch) scratch=$2 ;;
    --user) owner=$2 ;;
    --from) from=${2%/} ;;
    --wait) wait=$2 ;;
    esac
    set -- "$@" "$1" "$2"
    shift 2
    count=$((count - 2))
    continue
    ;;
  --as-root) as_root=1 ;;
  --help | -h)
    usage
    exit 0
    ;;
  -)
    [ -z "$given" ] || wrong 'one token, please'
    given=1
    IFS= read -r token || [ -n "$token" ] || wrong 'there is no token on standard input'
    shift
    count=$((count - 1))
    continue
    ;;
  -*) wrong "there is no option $option" ;;
  *)
    [ -z "$given" ] || wrong 'one token, please'
    given=$option
    shift
    count=$((count - 1))
    continue
    ;;
  esac
  set -- "$@" "$1"
  shift
  count=$((count - 1))
done

if [ -n "$given" ] && [ "$given" != 1 ]; then
  # Everybody on this machine reads command lines, but not another user's environment.
  if grep -qs '^# Make this machine a worker of an Outrider' "$0"; then
    OUTRIDER_JOIN=$given exec sh "$0" "$@"
  fi
  token=$given # it came by a pipe, as in `curl … | sh -s TOKEN`
fi
token=$(printf %s "$token" | tr -d '[:space:]')

case $token in
'') wrong 'a token is needed: `outrider token new` on the harness prints one' ;;
orj_*[!A-Za-z0-9_-]*) wrong 'the token has characters that none has: copy it again, in one piece' ;;
orj_?*) ;;
*) wrong 'this is not a join token: one begins with orj_' ;;
esac
case $wait in '' | *[!0-9]* | ??????*) wrong "--wait $wait: a number of seconds" ;; esac
case $from in
'' | http://?* | https://?*) ;;
*) wrong "--from $from: it begins with http:// or https://" ;;
esac
case $scratch in '' | /*) ;; *) scratch=$PWD/$scratch ;; esac

# Places

user=$(id -u) || fail 1 'id -u does not say who this is'
if [ "$user" -ne 0 ] && [ -z "${HOME:-}" ]; then
  fail 1 'HOME is not set: set it to your home folder'
fi
allowed() { # by the configuration that the worker will read
  for each in "${OUTRIDER_CONFIG:-}" "${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/outrider/outrider.toml" \
    /etc/outrider/outrider.toml; do
    grep -qs '^ *as_root *= *true' "$each" && return 0
  done
  return 1
}
owners='' # home folder
if [ -n "$owner" ]; then
  [ -z "$as_root" ] || wrong "--user and --as-root: either agents' code is that user's, or root's"
  [ "$user" -eq 0 ] || wrong '--user is for root: run by another user, the worker is that user'"'"'s'
  case $owner in [a-z_]*) ;; *) wrong "--user $owner: there is no such user on this machine" ;; esac
  case $owner in *[!A-Za-z0-9._-]*) wrong "--user $owner: there is no such user on this machine" ;; esac
  id=$(id -u "$owner" 2>/dev/null) || wrong "--user $owner: there is no such user on this machine"
  [ "$id" -ne 0 ] || wrong "--user $owner is root: name the user whose files agents may touch, or say --as-root"
  eval "owners=~$owner"
elif [ "$user" -eq 0 ] && [ -z "$as_root" ] && ! allowed; then
  fail 2 'this is root, and agents would run their code as root: run this as the user whose files they may touch,' \
    'or say --user NAME with that user, or --as-root'
fi
if [ -n "${OUTRIDER_WORKER_HOME:-}" ]; then
  home=$OUTRIDER_WORKER_HOME
elif [ "$user" -eq 0 ]; then
  home=/opt/outrider-worker
else
  home=${XDG_DATA_HOME:-$HOME/.local/share}/outrider-worker
fi
case $home in /*) ;; *) home=$PWD/$home ;; esac
usual=${XDG_STATE_HOME:-${HOME:-/root}/.local/state}/outrider/workers # where `outrider worker status` looks by itself
where=''
if [ -z "$scratch" ]; then
  scratch=${owners:+$owners/.local/state/outrider/workers}
  scratch=${scratch:-$usual}/${name:-harness-${HARNESS:-own}}
fi
log=$home/worker-${HARNESS:-own}.log
pidfile=$home/worker-${HARNESS:-own}.pid

mask=$(umask)
umask 077
if ! mkdir -p "$home" 2>/dev/null || ! [ -w "$home" ]; then
  fail 1 "$home cannot be written: name another folder in OUTRIDER_WORKER_HOME"
fi

# What is half made is removed on every way out.

lock='' half='' worker='' quiet='' started='' kept=''
tidy() {
  trap '' INT TERM HUP
  if [ -n "$worker" ]; then # not connected yet
    kill "$worker" 2>/dev/null
    if [ -n "$kept" ]; then # the keeper and its runs were here before
      wait "$worker" 2>/dev/null
    else
      "$outrider" worker down --scratch "$scratch" >/dev/null 2>&1
    fi
    rm -f "$pidfile"
  fi
  [ -z "$half" ] || rm -rf "$half"
  [ -z "$quiet" ] || rm -rf "$quiet"
  [ -z "$lock" ] || rm -rf "$lock"
}
exec 3>&2 # a trap has the redirections of what it interrupts
trap tidy EXIT
trap 'say "join.sh: interrupted; nothing half is left" >&3; exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

take_lock() {
  for try in 1 2; do
    if mkdir "$home/lock" 2>/dev/null; then
      lock=$home/lock
      printf '%s\n' $$ >"$lock/pid" && return 0
      fail 1 "$home cannot be written: is the disk full?"
    fi
    other=$(cat "$home/lock/pid" 2>/dev/null)
    if [ -n "$other" ] && kill -0 "$other" 2>/dev/null; then
      fail 1 "another join.sh (pid $other) is at work in $home; wait for it"
    fi
    [ "$try" = 2 ] || rm -rf "$home/lock" # its owner was killed
  done
  fail 1 "$home/lock cannot be made: is the disk full?"
}
take_lock

# Python

AS='
import os, pwd, sys
user = pwd.getpwnam(sys.argv[1])
os.setgroups([])
os.setgid(user.pw_gid)
os.setuid(user.pw_uid)
os.execv(os.path.realpath(sys.executable), [sys.executable, "-I", "-c", ""])
'

python='' old='' bare='' closed=''
fits() { # PYTHON: 0 when it will do; what is wrong with it is kept in old, bare or closed
  found=$("$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
  case $found in
  3.*) [ "${found#3.}" -ge 11 ] 2>/dev/null ;;
  *) false ;;
  esac || {
    old=${old:-$found}
    return 1
  }
  "$1" -I -c 'import ensurepip, venv' >/dev/null 2>&1 || {
    bare=${bare:-$found}
    return 1
  }
  if [ -n "$owner" ] && ! "$1" -I -c "$AS" "$owner" >/dev/null 2>&1; then
    closed=${closed:-$1}
    return 1
  fi
  python=$1
}

look_for_python() {
  if [ -n "${OUTRIDER_PYTHON:-}" ]; then
    fits "$OUTRIDER_PYTHON"
    return
  fi
  for each in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if each=$(command -v "$each" 2>/dev/null) && fits "$each"; then return 0; fi
  done
  if command -v uv >/dev/null 2>&1; then
    each=$(uv python find '>=3.11' 2>/dev/null) && [ -n "$each" ] && fits "$each" && return 0
  fi
  for each in "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/*/bin/python3; do
    [ -x "$each" ] && fits "$each" && return 0
  done
  return 1
}

packages() { # the command that installs what is missing
  if command -v apt-get >/dev/null 2>&1; then
    if [ -n "$bare" ]; then say "apt-get install python$bare-venv"; else say 'apt-get install python3 python3-venv'; fi
  elif command -v dnf >/dev/null 2>&1; then say 'dnf install python3.12'
  elif command -v apk >/dev/null 2>&1; then say 'apk add python3'
  elif command -v pacman >/dev/null 2>&1; then say 'pacman -S python'
  elif command -v zypper >/dev/null 2>&1; then say 'zypper install python312'
  elif command -v uv >/dev/null 2>&1; then say 'uv python install 3.12'
  fi
}

no_python() {
  install=$(packages)
  if [ -n "$closed" ]; then what="$closed is a Python that $owner cannot run"
  elif [ -n "${OUTRIDER_PYTHON:-}" ]; then what="OUTRIDER_PYTHON=$OUTRIDER_PYTHON is not Python 3.11 or newer with venv"
  elif [ -n "$bare" ]; then what="Python $bare lacks its venv module"
  elif [ -n "$old" ]; then what="Python $old is too old: Outrider needs 3.11 or newer"
  else what='no Python 3.11 or newer is here'
  fi
  if [ -z "$install" ]; then fail 1 "$what: install one, or name it in OUTRIDER_PYTHON"; fi
  fail 1 "$what: $install${old:+; where that is older than 3.11, name another Python in OUTRIDER_PYTHON}"
}

# Fetching: there is Python by then, on every machine the same, and it keeps to HTTP_PROXY.

FETCH='
import hashlib, sys, urllib.error, urllib.request
url, path, wanted = sys.argv[1:]
try:
    with urllib.request.urlopen(url, timeout=20) as answer, open(path, "wb") as file:
        digest = hashlib.sha256()
        while piece := answer.read(1 << 18):
            file.write(piece)
            digest.update(piece)
        if file.tell() != int(answer.headers.get("Content-Length") or file.tell()):
            sys.exit("the connection broke on the way")
except urllib.error.HTTPError as error:
    print("it answers", error.code, file=sys.stderr)
    sys.exit(6)
except Exception as error:
    why = getattr(error, "reason", error)
    print(getattr(why, "strerror", None) or why, file=sys.stderr)
    sys.exit(28 if getattr(error, "errno", 0) == 28 else 4)
if digest.hexdigest() != wanted:
    sys.exit(5)
'

fetch() { # PATH FILE SHA256: from the first endpoint that has it; the base URL that had it is in $from
  reasons='' code=4
  set -f # brackets of IPv6
  if [ -n "$from" ]; then bases=$from; else
    bases=''
    for each in $ENDPOINTS; do bases="$bases http://$each"; done
  fi
  for base in $bases; do
    why=$("$python" -I -c "$FETCH" "$base$1" "$2" "$3" 2>&1)
    case $? in
    0)
      from=$base
      set +f
      return 0
      ;;
    5)
      why='it has another file by that name; make a new token on the harness' code=1
      ;;
    6) code=1 ;;
    28) fail 1 "no space is left in $home" ;;
    130) exit 130 ;;
    esac
    reasons="$reasons; $base: $why"
  done
  fail "$code" "$1 could not be fetched${reasons:-: say where from with --from}"
}

# Installing: in a folder named after the content, which counts once it is whole.

checkout=''
[ -z "$WHY" ] || fail 1 "the harness cannot hand out Outrider now: $WHY. Once that is put right, make a new token there"
if [ -z "$WHEEL" ]; then
  checkout=$(cd "$(dirname "$0")/.." 2>/dev/null && pwd)
  grep -q '^name = "outrider"' "$checkout/pyproject.toml" 2>/dev/null ||
    fail 1 'this copy was not served by a harness, and stands in no checkout: run what `outrider token new` printed'
  release=$home/release-$(cd "$checkout" && find daemon mesh tui pyproject.toml -type f ! -name '*.pyc' | sort |
    xargs cat | cksum | tr ' ' -)
else
  release=$home/release-$(printf %s "$WHEEL_SHA256" | cut -c 1-16)
fi

install_it() {
  look_for_python || no_python
  for each in "$home"/release-*; do # what a killed run left
    if [ -d "$each" ] && ! [ -e "$each/whole" ]; then rm -rf "$each"; fi
  done
  say "Installing Outrider in $home, with $python …"
  half=$release quiet=$home/fetched
  rm -rf "$quiet"
  mkdir "$quiet" || fail 1 "$home cannot be written: is the disk full?"
  from_index=''
  if [ -n "$checkout" ]; then
    wheel=$checkout
  else
    wheel=$quiet/$WHEEL
    fetch "/release/$WHEEL" "$wheel" "$WHEEL_SHA256"
    if [ -n "$INDEX_SHA256" ]; then
      fetch /wheelhouse/ "$quiet/list" "$INDEX_SHA256"
      # Its links have the hashes of what they lead to, which pip checks; the base is where they lead.
      { printf '<!DOCTYPE html><base href="%s/">\n' "$from" && cat "$quiet/list"; } >"$quiet/list.html" ||
        fail 1 "no space is left in $home"
      from_index=$quiet/list.html
    fi
  fi
  { # in two steps: venv would not say why pip cannot be installed
    LC_ALL=C "$python" -I -m venv --without-pip "$release" && LC_ALL=C "$release/bin/python" -I -m ensurepip
  } >"$quiet/log" 2>&1 || failed_install 'the virtual environment could not be made'
  if [ -n "$from_index" ]; then
    host=${from#*://}
    PIP_NO_INDEX=1 PIP_TRUSTED_HOST=${host%%/*} pip_install -f "$from_index" "$wheel"
  else
    pip_install "$wheel"
  fi || failed_install 'Outrider could not be installed'
  [ -x "$release/bin/outrider" ] || fail 1 'what was installed has no outrider command'
  : >"$release/whole" || failed_install 'Outrider could not be installed'
  half=''
  rm -rf "$quiet"
  quiet=''
}

pip_install() {
  LC_ALL=C "$release/bin/python" -I -m pip install --no-input --disable-pip-version-check \
    --no-user "$@" >>"$quiet/log" 2>&1
}

failed_install() {
  if grep -qi 'no space left' "$quiet/log"; then
    fail 1 "no space is left: Outrider needs about 200 MB in $home and some in ${TMPDIR:-/tmp}"
  fi
  grep -v '^WARNING: Retrying' "$quiet/log" | tail -n 10 >&2
  if [ -z "$INDEX_SHA256$checkout" ] && grep -q 'No matching distribution found' "$quiet/log"; then
    fail 1 "$1: pip finds no packages for it. Give this machine a package index (PIP_INDEX_URL, or a proxy in" \
      "HTTPS_PROXY), or have the harness serve them: \`outrider wheelhouse --python" \
      "$("$python" -I -c 'import platform, sys; print("%d.%d --arch %s" % (*sys.version_info[:2], platform.machine()))')\`" \
      'there, and then a new token'
  fi
  fail 1 "$1; the above is why"
}

# The command at a place that stays the same, where the worker's user can run it.
link_it() {
  if [ -n "$owner" ] && ! { chmod go+x "$home" && chmod -R go+rX "$release"; }; then
    fail 1 "$home cannot be opened to $owner"
  fi
  if ! ln -s "$release/bin/outrider" "$home/outrider.new" 2>/dev/null ||
    ! mv -f "$home/outrider.new" "$home/outrider"; then
    fail 1 "$home cannot be written: is the disk full?"
  fi
}

if [ -e "$release/whole" ] && "$release/bin/python" -I -c '' 2>/dev/null; then
  say "Outrider is already there: $release"
else
  rm -rf "$release"
  install_it
fi
rm -f "$home/outrider.new"
link_it
outrider=$release/bin/outrider

# The worker

look() { "$outrider" worker status --scratch "$scratch" 2>&1; }

start_worker() {
  if [ -z "$owner" ] && ! mkdir -p "$(dirname "$scratch")" 2>/dev/null; then
    fail 1 "$scratch cannot be made: name another folder with --scratch"
  fi
  kept=''
  printf '%s\n' "$status" | grep -q '^ *keeper  *pid ' && kept=1
  touch "$log" 2>/dev/null || fail 1 "$log cannot be written"
  earlier=$(wc -c <"$log") # bytes of the log that are of earlier starts
  set -- worker --join - --scratch "$scratch"
  [ -z "$name" ] || set -- "$@" --name "$name"
  [ -z "$as_root" ] || set -- "$@" --as-root
  [ -z "$owner" ] || set -- "$@" --user "$owner"
  # A session of its own, so that it outlives this terminal; and Ctrl-C means something to what it runs, though sh
  # has what it starts in the background ignore it.
  # shellcheck disable=SC2016 # python
  launch='
import os, signal, sys
for each in signal.SIGINT, signal.SIGQUIT:
    signal.signal(each, signal.SIG_DFL)
os.setsid()
os.chdir("/")
os.execv(sys.argv[1], sys.argv[1:])
'
  umask "$mask" # agents' files are as the user has them
  printf '%s\n' "$token" | "$release/bin/python" -I -c "$launch" "$outrider" "$@" >>"$log" 2>&1 3>&- &
  pid=$! worker=$! started=1
  umask 077
  printf '%s\n' "$pid" >"$pidfile" || fail 1 "$pidfile cannot be written: is the disk full?"
  say "The worker is started, pid $pid; its log is $log"
}

before=$(cat "$pidfile" 2>/dev/null)
if [ -n "$before" ] && kill -0 "$before" 2>/dev/null && [ -d "/proc/$before" ] &&
  tr '\0' ' ' <"/proc/$before/cmdline" 2>/dev/null | grep -q 'worker --'; then # --join, or --scratch after an update
  own=$(tr '\0' '\n' <"/proc/$before/cmdline" | while IFS= read -r each; do
    if [ "$each" = --scratch ]; then IFS= read -r each && printf '%s\n' "$each" && break; fi
  done)
  if [ -n "$own" ] && [ "$own" != "$scratch" ]; then
    say "this machine is a worker of that harness already, in $own: that one goes on, whatever else is named"
    scratch=$own
  fi
else
  before=''
fi
if status=$(look); then
  say "$status"
  say 'the worker is already there and connected; nothing was started'
  exit 0
fi
case $before,$status in
,*) start_worker ;;
*'does not know this machine'*) # what runs there goes on, under its keeper
  say 'the harness does not know the worker that is here any more: that one ends, and joins anew'
  kill "$before" 2>/dev/null
  tries=0
  while kill -0 "$before" 2>/dev/null && [ $tries -lt 20 ]; do
    sleep 1
    tries=$((tries + 1))
  done
  start_worker
  ;;
*)
  say "the worker (pid $before) is already there and dials; nothing was started"
  pid=$before
  ;;
esac

waited=0
until status=$(look); do
  if ! kill -0 "$pid" 2>/dev/null; then
    if [ -z "$started" ]; then # as one does that hears only now that it was removed: this token is another one's
      say 'that worker has ended'
      start_worker
      continue
    fi
    worker=''
    wait "$pid" 2>/dev/null
    code=$?
    rm -f "$pidfile"
    tail -c +$((earlier + 1)) "$log" | tail -n 5 >&2
    case $code in 2 | 3 | 4) ;; *) code=1 ;; esac
    fail "$code" "the worker ended; the above is the end of $log"
  fi
  if [ "$waited" -ge "$wait" ]; then
    say "$status" >&2
    worker='' # it goes on trying
    fail 1 "the worker is not connected after $wait s, the above is why; it goes on trying (pid $pid, log $log)"
  fi
  sleep 1
  waited=$((waited + 1))
done
worker=''
say "$status"
case $scratch in "$usual"/*) ;; *) where=" --scratch $scratch" ;; esac
say "This machine is a worker. See how it stands: $home/outrider worker status$where"
