#!/usr/bin/env bash
# Runs a small sweep through Slurm and compares its table with that of a local run. Sets up a cluster of
# one node, this machine, in a temporary directory, and takes it down again. Needs root and Debian's
# slurm-wlm and munge; prints "skipped: why" where they are missing. Usage: test-slurm.sh [WEFT-BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { echo "skipped: $*"; exit 0; }
fail() { echo "test-slurm: $*" >&2; tail -n 20 "$dir"/*.log >&2 || true; exit 1; }

[ "$(id -u)" = 0 ] || skip "root is needed to start Slurm's daemons"
for program in munged mungekey slurmctld slurmd sbatch python3; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || skip "$program is missing (apt-get install slurm-wlm munge python3)"
done
PATH=$PATH:/usr/sbin
weft=${1:-}
if [ -z "$weft" ]; then
    cargo build --profile ci -p weft-apps --quiet
    weft=${CARGO_TARGET_DIR:-target}/ci/weft
fi
weft=$(realpath "$weft")

# Not below /tmp: munged refuses sockets and keys where others may write.
dir=$(mktemp -d /run/weft-slurm.XXXXXX)
chmod 755 "$dir"
pids=()
clean_up() {
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
    wait
    rm -rf "$dir"
}
trap clean_up EXIT

# Waits up to 30 s for a command to succeed.
until_true() {
    for _ in $(seq 300); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
    fail "waited in vain for: $*"
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

mungekey --create --keyfile="$dir/munge.key" --bits=1024
munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
    --log-file="$dir/munged.log" --seed-file="$dir/munge.seed" --num-threads=2 >"$dir/munged.out.log" 2>&1 &
pids+=($!)
until_true munge --no-input --socket="$dir/munge.socket"

node=$(hostname -s)
mkdir "$dir/state" "$dir/spool"
cat >"$dir/slurm.conf" <<CONF
ClusterName=weft
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$dir/slurm.conf
slurmctld -D -c >"$dir/slurmctld.log" 2>&1 &
pids+=($!)
until_true scontrol ping
slurmd -D -N "$node" >"$dir/slurmd.log" 2>&1 &
pids+=($!)
ready() { [ "$(sinfo --noheader --format=%T)" = idle ]; }
until_true ready

cat >"$dir/sweep.toml" <<'SWEEP'
[run]
workload = "permutation"
hosts = 8
size = "16KiB"
[vary]
cc = ["nscc", "smartt"]
seed = { from = 1, to = 20 }
SWEEP
"$weft" sweep "$dir/sweep.toml" --out "$dir/local.jsonl"
# Uses a directory whose name needs quotes.
mkdir "$dir/a table's place"
out="$dir/a table's place/slurm.jsonl"
"$weft" sweep "$dir/sweep.toml" --out "$out" --slurm --tasks 3 --sbatch=--time=10

ended() { [ -z "$(squeue --noheader)" ]; }
until_true ended
[ -f "$out" ] || { cat "$out".slurm-*.log >&2 || true; fail "no table"; }
cmp "$dir/local.jsonl" "$out" || fail "the tables differ"
[ "$(ls "$(dirname "$out")")" = slurm.jsonl ] || fail "left over: $(ls "$(dirname "$out")")"
"$weft" sweep "$dir/sweep.toml" --out "$out" --slurm --tasks 3
echo "passed: $(wc -l <"$out") rows through Slurm $(sbatch --version | cut -d' ' -f2), the same bytes as locally"
