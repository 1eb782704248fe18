#!/usr/bin/env bash
# Run a command as root under a throw-away Linux kernel that has WireGuard, on a host whose own kernel has none.
#
#   tests/mesh/kernel-vm.sh [-t SECONDS] [-m MIB] [-e NAME]... [-T] [-v] [-p] -- COMMAND [ARG...]
#     -t SECONDS   limit for the run, boot included (default 600)
#     -m MIB       memory (default 1024)
#     -e NAME      pass this environment variable on
#     -T           time travel: time passes only while something runs (sleep 300 takes milliseconds)
#     -v           show the kernel's console on stderr
#     -p           build the kernel only, and print where it is (no COMMAND)
#
# The kernel is User-Mode Linux, built once from Debian's source into KERNEL_VM_DIR (default ~/.cache/kernel-vm), one
# process at a time. COMMAND sees the host's files at the same paths (what it writes is lost), the caller's working
# directory, no network but lo, one processor. Exit code: the command's; 124 time limit, 125 nothing to build a kernel with
# or a panic, 126 the build failed.
set -u -o pipefail

die() { echo "kernel-vm: $*" >&2; exit "${failed:-125}"; }
quoted() { printf '%q ' "$@"; }

limit=600 mem=1024 names=(PATH HOME LANG CI) travel='' verbose='' prepare=''
while [ $# -gt 0 ]; do
  case $1 in
    -t) limit=$2; shift 2 ;;
    -m) mem=$2; shift 2 ;;
    -e) names+=("$2"); shift 2 ;;
    -T) travel=1; shift ;;
    -v) verbose=1; shift ;;
    -p) prepare=1; shift ;;
    --) shift; break ;;
    *) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 125 ;;
  esac
done
[ $# -gt 0 ] || [ -n "$prepare" ] || die 'no command'
[ "$(id -u)" = 0 ] || die 'must run as root'
bb=$(command -v busybox) && ! ldd "$bb" >/dev/null 2>&1 || die 'busybox-static is missing'
top=${KERNEL_VM_DIR:-${HOME:-/root}/.cache/kernel-vm}
mkdir -p "$top" || die "cannot make $top"

config() { cat <<'CFG'
64BIT PRINTK MULTIUSER SYSCTL PROC_FS PROC_SYSCTL SYSFS TMPFS SHMEM DEVTMPFS HOSTFS OVERLAY_FS BLOCK TTY UNIX98_PTYS
STDERR_CONSOLE NULL_CHAN BINFMT_ELF BINFMT_SCRIPT FUTEX EPOLL SIGNALFD TIMERFD EVENTFD AIO ADVISE_SYSCALLS MEMBARRIER
POSIX_TIMERS HIGH_RES_TIMERS NO_HZ_IDLE INOTIFY_USER FILE_LOCKING FHANDLE SYSVIPC POSIX_MQUEUE NAMESPACES NET_NS PID_NS
UTS_NS IPC_NS USER_NS CGROUPS SECCOMP SECCOMP_FILTER HW_RANDOM UML_RANDOM UML_TIME_TRAVEL_SUPPORT CC_OPTIMIZE_FOR_PERFORMANCE
NET NETDEVICES NET_CORE PACKET UNIX UNIX_DIAG INET INET_DIAG INET_UDP_DIAG INET_DIAG_DESTROY IPV6 IP_ADVANCED_ROUTER
IP_MULTIPLE_TABLES IPV6_MULTIPLE_TABLES DUMMY VETH TUN BRIDGE NET_L3_MASTER_DEV NET_VRF WIREGUARD NET_SCHED NET_SCH_NETEM
NETFILTER NETFILTER_ADVANCED NF_CONNTRACK NF_TABLES NF_TABLES_INET NF_TABLES_IPV4 NF_TABLES_IPV6 NFT_CT NFT_LIMIT NFT_LOG
NFT_REJECT NFT_FIB_INET NFT_FIB_IPV4 NFT_FIB_IPV6 NF_NAT NFT_NAT NFT_MASQ NFT_REDIR
CFG
}

kernel=$top/linux-uml-$(config | sha256sum | cut -c1-12) # another configuration is another kernel
build() {
  local source work tool
  source=$(find /usr/src -maxdepth 1 -name 'linux-source-*.tar.xz' | sort -V | tail -n 1)
  [ -n "$source" ] || die 'no /usr/src/linux-source-*.tar.xz (apt-get install linux-source-6.1)'
  for tool in gcc make flex bison bc xz; do
    command -v "$tool" >/dev/null || die "$tool is missing"
  done
  work=$(mktemp -d "$top/build.XXXXXX")
  echo "kernel-vm: building User-Mode Linux from ${source##*/} (about 5 minutes, once)" >&2
  (
    set -e
    cd "$work"
    tar xJf "$source" --strip-components=1
    make -s ARCH=um allnoconfig
    for option in $(config); do echo "CONFIG_$option=y"; done >>.config
    make -s ARCH=um olddefconfig
    grep -q ^CONFIG_WIREGUARD=y .config
    grep -q ^CONFIG_UML_RANDOM=y .config # without it getrandom() waits for minutes
    make -s ARCH=um -j"$(nproc)" linux
    strip -o "$kernel.new" linux
    mv "$kernel.new" "$kernel"
  ) >"$top/build.log" 2>&1 </dev/null || {
    tail -n 20 "$top/build.log" >&2
    rm -rf "$work"
    failed=126 die "the build failed, see $top/build.log"
  }
  rm -rf "$work"
}
exec 9>"$top/.lock"
flock 9
[ -x "$kernel" ] || build
exec 9>&-
[ -z "$prepare" ] || { echo "$kernel"; exit 0; }

# --- what the guest runs
job=$(mktemp -d) pid=''
trap '[ -n "$pid" ] && { kill "$pid"; wait "$pid"; } 2>/dev/null; rm -rf "$job"' EXIT
trap 'exit 130' INT TERM
{
  echo 'export USER=root TERM=dumb KERNEL_VM=uml'
  for name in "${names[@]}"; do
    [ -z "${!name+x}" ] || echo "export $name=$(quoted "${!name}")"
  done
  echo "cd $(quoted "$PWD") && exec $(quoted "$@")"
} >"$job/command"
cat >"$job/stage2" <<EOS
b=/run/busybox
\$b mkdir -p /dev/pts /dev/shm; \$b mount -t devpts devpts /dev/pts; \$b mount -t tmpfs tmpfs /dev/shm
\$b ip link set lo up; \$b hostname kernel-vm
\$b ln -s /proc/self/fd /dev/fd
\$b mkdir -p /dev/net; [ -e /dev/net/tun ] || \$b mknod /dev/net/tun c 10 200
echo 0 > /proc/sys/kernel/printk; \$b stty -F /dev/tty1 raw -echo
/bin/bash -c '/bin/bash /run/job/command </dev/null 2>&1 | /run/busybox cat > /dev/tty1; echo \${PIPESTATUS[0]} > /run/job/rc.new'
\$b mv /run/job/rc.new /run/job/rc; \$b sync; exec \$b poweroff -f
EOS
cat >"$job/init" <<EOS
#!$bb sh
b=$bb; n=/mnt/n
\$b mount -t tmpfs -o mode=755 tmpfs /mnt; \$b mkdir /mnt/u /mnt/w \$n
\$b mount -t overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w overlay \$n
\$b mount -t proc proc \$n/proc; \$b mount -t sysfs sys \$n/sys; \$b mount -t devtmpfs dev \$n/dev
\$b mount -t tmpfs -o mode=755 tmpfs \$n/run; \$b mkdir -p \$n/run/job; \$b cp \$b \$n/run/busybox
\$b mount -t hostfs -o $job none \$n/run/job
exec \$b chroot \$n /run/busybox sh /run/job/stage2
EOS
chmod +x "$job/init"
boot=("$kernel" "mem=${mem}M" root=/dev/root rootfstype=hostfs rootflags=/ ro quiet panic=-1 "init=$job/init"
  con=null con0=null,fd:2 con1=null,fd:1 "umid=kvm$$" "uml_dir=$job/")
[ -z "$travel" ] || boot+=(time-travel=inf-cpu "time-travel-start=$(date +%s)000000000")
TMPDIR=$job timeout -k 2 "$limit" "${boot[@]}" </dev/null 2>"$job/err" &
pid=$!
wait $pid
status=$?
pid=''
[ -z "$verbose" ] || sed 's/^/[console] /' "$job/err" >&2
[ ! -s "$job/rc" ] || exit "$(cat "$job/rc")"
[ -n "$verbose" ] || tail -n 15 "$job/err" >&2
case $status in
  124 | 137) echo "kernel-vm: time limit of $limit s" >&2; exit 124 ;;
esac
die "the guest ended without a result (status $status)"
