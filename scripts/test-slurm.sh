#!/usr/bin/env bash
# Runs a small sweep through Slurm and compares its table with that of a local run; then a connection matrix and an
# MPI program, with the libfabric provider, whose ranks Slurm starts (srun --mpi=pmix). Sets up a cluster of one node, this
# machine, in a temporary directory, and takes it down again. Needs root and Debian's slurm-wlm and munge, and what
# scripts/setup.sh installs; prints "skipped: why" where they are missing. Usage: test-slurm.sh
set -euo pipefail
cd "$(dirname "$0")/.."

skip() { echo "skipped: $*"; exit 0; }
fail() { echo "test-slurm: $*" >&2; tail -n 20 "$dir"/*.log >&2 || true; exit 1; }

[ "$(id -u)" = 0 ] || skip "root is needed to start Slurm's daemons"
for program in munged mungekey slurmctld slurmd sbatch python3 mpicc.openmpi; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
        skip "$program is missing (apt-get install slurm-wlm munge python3 libopenmpi-dev)"
done
PATH=$PATH:/usr/sbin
cargo build --profile ci -p weft-apps -p weft-libfabric-provider --quiet
target=$(realpath "${CARGO_TARGET_DIR:-target}")/ci
weft=$target/weft

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

# Ranks, two to a core.
export FI_PROVIDER_PATH=$dir/provider
mkdir "$FI_PROVIDER_PATH"
cp "$target/libweft_fi.so" "$FI_PROVIDER_PATH/libweft-fi.so"
ranks() { timeout 120 srun --mpi=pmix --ntasks=4 --overcommit --chdir="$dir" "$@" >"$dir/ranks.log" 2>&1; }

cat >"$dir/four.cm" <<'MATRIX'
Nodes 4
Connections 4
Triggers 1
0->1 id 1 start 0 size 1000000
1->2 id 2 start 0 size 70000 send_done_trigger 1
2->3 id 3 trigger 1 size 1000000
3->0 id 4 start 0 size 1
trigger id 1 oneshot
MATRIX
ranks "$weft" matrix four.cm --provider weft --verify --json matrix.json || fail "the matrix failed"
python3 - "$dir/matrix.json" <<'CHECK' || fail "the matrix reports something else"
import json, sys
report = json.load(open(sys.argv[1]))
assert report["config"]["provider"] == "weft" and report["config"]["hosts"] == 4, report["config"]
assert report["flows"] == {"total": 4, "completed": 4}, report["flows"]
CHECK
echo "passed: a connection matrix of four ranks by srun --mpi=pmix"

mpicc.openmpi -O1 -o "$dir/exchange" libfabric-provider/tests/exchange.c
export OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi OMPI_MCA_mtl_ofi_provider_include=weft OMPI_MCA_osc=pt2pt
ranks "$dir/exchange" || fail "the MPI program failed"
echo "passed: exchange.c over $(ompi_info --version | head -1), four ranks by srun --mpi=pmix"
