#!/usr/bin/env bash
# A whole Slurm cluster on this machine, for tests: munged, slurmctld and N slurmd on loopback, each virtual node with 8
# countable GPUs. Real daemons and real commands; what is virtual is that all nodes are this machine and that a GPU is a
# device like /dev/null. No systemd, no cgroups; all files lie under $CLUSTER_DIR. As root or as an ordinary user.
#
#   slurm_cluster.sh up [NODES]         start (8 nodes = 64 GPUs; 125 = 1000 GPUs)
#   slurm_cluster.sh down               cancel jobs, stop every daemon by pid, keep the logs
#   slurm_cluster.sh crash-node NAME    SIGKILL the node's slurmd, steps and tasks: to slurmctld, a power cut
#   slurm_cluster.sh start-node NAME    bring it back
#   slurm_cluster.sh stop-controller    end slurmctld (kill-controller: SIGKILL), jobs go on
#   slurm_cluster.sh freeze-controller  SIGSTOP slurmctld (thaw-controller: SIGCONT)
#   slurm_cluster.sh start-controller   start it from its saved state
#
# Debian 12: apt-get install slurmctld slurmd slurm-client munge
set -euo pipefail

CLUSTER_DIR=${CLUSTER_DIR:-/tmp/slurm-cluster}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
CPUS_PER_NODE=${CPUS_PER_NODE:-16}
MEMORY_MB_PER_NODE=${MEMORY_MB_PER_NODE:-64000}
CONTROLLER_PORT=${CONTROLLER_PORT:-16817}
FIRST_NODE_PORT=${FIRST_NODE_PORT:-17001}
START_TIMEOUT_S=${START_TIMEOUT_S:-60}
NODE_TIMEOUT_S=${NODE_TIMEOUT_S:-6}         # a silent slurmd is DOWN two to three times this later
MESSAGE_TIMEOUT_S=${MESSAGE_TIMEOUT_S:-5}
CREDENTIAL_LIFE_S=${CREDENTIAL_LIFE_S:-15}  # 5 at least; a requeued job waits this long to start again
EXTRA_SLURM_CONF=${EXTRA_SLURM_CONF:-}      # a file whose lines replace those with the same key

export SLURM_CONF=$CLUSTER_DIR/slurm.conf
MUNGE_DIR=$CLUSTER_DIR/munge
DEVICE_DIR=$CLUSTER_DIR/dev
PID_DIR=$CLUSTER_DIR/pid
LOG_DIR=$CLUSTER_DIR/log

fail() { echo "slurm cluster: $*" >&2; exit 1; }

now_ms() { date +%s%3N; }

# Whether a daemon of ours runs under this pid: ended ones may leave a zombie or a reused pid.
is_daemon() {
  [[ $(cat "/proc/$1/comm" 2> /dev/null) =~ ^(munged|slurm) ]] \
    && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2> /dev/null
}

live_pid() {
  local pid
  pid=$(cat "$1" 2> /dev/null) || return 1
  [[ -n $pid ]] && is_daemon "$pid" && echo "$pid"
}

wait_until() {
  local what=$1 deadline
  shift
  deadline=$(($(now_ms) + START_TIMEOUT_S * 1000))
  until "$@" > /dev/null 2>&1; do
    (($(now_ms) < deadline)) || fail "no $what after $START_TIMEOUT_S s; see $LOG_DIR"
    sleep 0.05
  done
}

# By pid, not by pid file: slurmctld removes its file long before it ends.
stop_daemon() {
  local pid_file=$1 patience_ms=${2:-5000} pid deadline
  deadline=$(($(now_ms) + patience_ms))
  pid=$(live_pid "$pid_file") || return 0
  kill "$pid" 2> /dev/null || true
  while is_daemon "$pid"; do
    (($(now_ms) < deadline)) || { kill -9 "$pid" 2> /dev/null || true; break; }
    sleep 0.05
  done
  rm -f "$pid_file"
}

node_names() { printf 'node%03d\n' $(seq 1 "$1"); }

# slurmd drops a gpu GRES that names no File= ("Removing file-less GPU"), and
# slurmctld then sets the node INVAL. Character devices like /dev/null give the
# count and CUDA_VISIBLE_DEVICES; where mknod is refused, plain files give the count.
make_gpu_devices() {
  local i
  mkdir -p "$DEVICE_DIR"
  for i in $(seq 0 $((GPUS_PER_NODE - 1))); do
    [[ -e $DEVICE_DIR/gpu$i ]] || mknod -m 666 "$DEVICE_DIR/gpu$i" c 1 3 2> /dev/null || touch "$DEVICE_DIR/gpu$i"
  done
}

replace_config_lines() {
  local lines line
  mapfile -t lines
  for line in "${lines[@]}"; do [[ $line != *=* ]] || sed -i "/^${line%%=*}=/d" "$SLURM_CONF"; done
  printf '%s\n' "${lines[@]}" >> "$SLURM_CONF"
}

write_config() {
  local nodes=$1 names ports
  names=$(printf 'node[001-%03d]' "$nodes")
  ports="[$FIRST_NODE_PORT-$((FIRST_NODE_PORT + nodes - 1))]"
  cat > "$SLURM_CONF" << CONF
ClusterName=virtual
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$CONTROLLER_PORT
SlurmUser=$(id -un)
SlurmdUser=$(id -un)

AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$MUNGE_DIR/munge.socket,cred_expire=$CREDENTIAL_LIFE_S

StateSaveLocation=$CLUSTER_DIR/state
SlurmdSpoolDir=$CLUSTER_DIR/spool/%n
SlurmctldPidFile=$PID_DIR/slurmctld.pid
SlurmdPidFile=$PID_DIR/slurmd.%n.pid
SlurmctldLogFile=$LOG_DIR/slurmctld.log
SlurmdLogFile=$LOG_DIR/slurmd.%n.log

# Nothing of the kernel's or root's: no cgroups, no binding, no job accounting.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true

# Virtual nodes claim more than the host has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu

# Finished jobs: a line of text each, and MinJobAge seconds in slurmctld.
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$LOG_DIR/jobcomp.txt
MinJobAge=3600

# Quick reactions, so that tests are short.
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=50000,batch_sched_delay=0,bf_interval=1
SlurmdTimeout=$NODE_TIMEOUT_S
MessageTimeout=$MESSAGE_TIMEOUT_S
KillWait=2
UnkillableStepTimeout=180
ReturnToService=2
JobRequeue=1

# A job in partition urgent takes the nodes of jobs in main; those are requeued.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE

NodeName=$names NodeHostName=localhost NodeAddr=127.0.0.1 Port=$ports CPUs=$CPUS_PER_NODE RealMemory=$MEMORY_MB_PER_NODE Gres=gpu:$GPUS_PER_NODE State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=20 State=UP
CONF
  cat > "$CLUSTER_DIR/gres.conf" << CONF
NodeName=$names Name=gpu File=$DEVICE_DIR/gpu[0-$((GPUS_PER_NODE - 1))] Flags=nvidia_gpu_env
CONF
  [[ -z $EXTRA_SLURM_CONF ]] || replace_config_lines < "$EXTRA_SLURM_CONF"
}

start_munge() {
  mkdir -p "$MUNGE_DIR"
  chmod 755 "$MUNGE_DIR"
  [[ -s $MUNGE_DIR/munge.key ]] || (umask 077; head -c 1024 /dev/urandom > "$MUNGE_DIR/munge.key")
  munged --key-file="$MUNGE_DIR/munge.key" --socket="$MUNGE_DIR/munge.socket" \
    --pid-file="$PID_DIR/munged.pid" --log-file="$LOG_DIR/munged.log" \
    --seed-file="$MUNGE_DIR/munged.seed" --num-threads=4
}

start_node() {
  mkdir -p "$CLUSTER_DIR/spool/$1"
  slurmd -N "$1"
}

# A step's daemon (slurmstepd) outlives its slurmd and hides its arguments: it is
# told by the slurmd log that it holds open, its tasks by what Slurm put into
# their environment. An argument limits both to that node.
step_daemon_pids() {
  local node=${1:-*} pid link
  for pid in $(pgrep slurmstepd || true); do
    for link in /proc/"$pid"/fd/*; do
      # shellcheck disable=SC2053  # the node may be a glob
      [[ $(readlink "$link" 2> /dev/null) == $LOG_DIR/slurmd.$node.log ]] && { echo "$pid"; break; }
    done
  done
}

task_pids() {
  grep -lszE "^SLURMD_NODENAME=${1:-.*}$" /proc/[0-9]*/environ 2> /dev/null \
    | xargs -r grep -lszx "SLURM_CONF=$SLURM_CONF" 2> /dev/null | cut -d/ -f3 || true
}

# To slurmctld this is a power cut.
crash_node() {
  local pid
  for pid in $(live_pid "$PID_DIR/slurmd.$1.pid" || true) $(step_daemon_pids "$1") $(task_pids "$1"); do
    kill -9 "$pid" 2> /dev/null || true
  done
  rm -f "$PID_DIR/slurmd.$1.pid"
}

all_idle() { [[ $(sinfo -h -t idle -p main -o %D) == "$1" ]]; }

up() {
  local nodes=$1 started name
  command -v munged slurmctld slurmd sinfo > /dev/null || fail "install slurmctld, slurmd, slurm-client and munge"
  ! live_pid "$PID_DIR/slurmctld.pid" > /dev/null || fail "already up in $CLUSTER_DIR"
  started=$(now_ms)
  rm -rf "$CLUSTER_DIR/state" "$CLUSTER_DIR/spool"
  mkdir -p "$CLUSTER_DIR/state" "$CLUSTER_DIR/spool" "$PID_DIR" "$LOG_DIR"
  chmod 755 "$CLUSTER_DIR"
  trap down EXIT
  make_gpu_devices
  write_config "$nodes"
  start_munge
  slurmctld
  for name in $(node_names "$nodes"); do start_node "$name"; done
  wait_until "idle $nodes nodes" all_idle "$nodes"
  trap - EXIT
  echo "up: $nodes nodes x $GPUS_PER_NODE GPUs in $(($(now_ms) - started)) ms; export SLURM_CONF=$SLURM_CONF"
}

down() {
  local file pid
  if live_pid "$PID_DIR/slurmctld.pid" > /dev/null; then
    squeue -h -o %A 2> /dev/null | xargs -r scancel --quiet 2> /dev/null || true
    for _ in $(seq 50); do [[ -n $(squeue -h 2> /dev/null) ]] || break; sleep 0.1; done
  fi
  stop_daemon "$PID_DIR/slurmctld.pid"
  for file in "$PID_DIR"/slurmd.*.pid; do ! pid=$(live_pid "$file") || kill "$pid" 2> /dev/null || true; done
  for file in "$PID_DIR"/slurmd.*.pid; do stop_daemon "$file"; done
  for pid in $(step_daemon_pids) $(task_pids); do kill -9 "$pid" 2> /dev/null || true; done
  stop_daemon "$PID_DIR/munged.pid"
  echo "down: logs in $LOG_DIR"
}

case ${1:-} in
  up) up "${2:-8}" ;;
  down) down ;;
  crash-node) crash_node "${2:?name of the node}" ;;
  start-node) start_node "${2:?name of the node}" ;;
  stop-controller) stop_daemon "$PID_DIR/slurmctld.pid" ;;
  kill-controller) kill -9 "$(live_pid "$PID_DIR/slurmctld.pid")" ;;
  freeze-controller) kill -STOP "$(live_pid "$PID_DIR/slurmctld.pid")" ;;
  thaw-controller) kill -CONT "$(live_pid "$PID_DIR/slurmctld.pid")" ;;
  start-controller) slurmctld ;;
  *) sed -n '/^#   slurm_/s/^#   //p' "$0" >&2; exit 2 ;;
esac
