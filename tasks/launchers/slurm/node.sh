# --- from here on the same for every job: tasks/launchers/slurm/node.sh of the day it was submitted ---
# Run by srun once a node: the trainer (main) or a command that goes before it (first N). How it ended is one line in
# ended/: when, of which kind (done, signal, code, missing), which.
set -u
node=${SLURM_NODEID:-0} child=

wrote() { # how the command of this node ended
  mkdir -p "$folder/ended"
  echo "$(date +%s.%N) $1 $2" > "$folder/ended/.$node" && mv "$folder/ended/.$node" "$folder/ended/$node"
}

tell() { # what this node runs, for the report: a stand-in says so
  mkdir -p "$folder/nodes"
  printf '{"node": "%s", "runs": "%s", "attempt": %s, "job": "%s", "step": "%s", "time": %s}\n' \
    "${SLURMD_NODENAME:-$HOSTNAME}" "$1" "$attempt" "$SLURM_JOB_ID" "${SLURM_STEP_ID:-}" "$(date +%s)" \
    > "$folder/nodes/${SLURMD_NODENAME:-$HOSTNAME}.json"
}

torchrun() { # the words that start the command once a process, on so many nodes, which meet at the first
  local here=()
  case $SCALEUP_FIRST_NODE in 127.*) here=(--local-addr=127.0.0.1) ;; esac
  # Without SIGTERM: who was told to save shall not be ended by the agent before it has. And one that is stuck in a
  # collective with a dead partner answers nothing, so the agent waits for it a second, not 30.
  printf '%s\0' "${python[@]}" -m training.torchrun --nnodes="$1" --nproc-per-node="$processes" \
    --rdzv-backend=c10d --rdzv-endpoint="$SCALEUP_FIRST_NODE:$SCALEUP_PORT" \
    --rdzv-id="$SLURM_JOB_ID.$SLURM_STEP_ID" --rdzv-conf="$rendezvous" "${here[@]}" --max-restarts=0 \
    --monitor-interval=0.1 --signals-to-handle=SIGINT,SIGHUP,SIGQUIT --shutdown-timeout=1 --no-python
}

ask_to_save() { # the command, or torchrun and those of its processes that answer the signal
  local pid task
  kill -USR1 "$child" 2> /dev/null
  [ "$start" = torchrun ] || return 0
  for task in /proc/"$child"/task/*/children; do
    for pid in $(< "$task"); do
      ((0x$(sed -n 's/^SigCgt:\t//p' "/proc/$pid/status") & 0x200)) && kill -USR1 "$pid"
    done
  done 2> /dev/null
}

told() { # SIGTERM, from Slurm: every process of the job got it. The state is worth keeping, unless a gate ended it
  if ((saves)); then
    if grep -q '"save": false' "$folder/cancel.json" 2> /dev/null; then kill -KILL "$child"; else ask_to_save; fi
  fi # else the command got it too; were its parent gone, Slurm might lose sight of it
}

look_for_save() { # a file asks for it, which needs no controller
  while kill -0 "$child" 2> /dev/null; do
    if [ -e "$folder/save" ]; then ask_to_save && return; fi
    sleep 0.5
  done
}

run_node() { # the command of this node, on the nodes that really run it
  local nodes=${SLURM_STEP_NUM_NODES:-$SLURM_JOB_NUM_NODES} status words=("$@")
  ((real_nodes == 0 || nodes <= real_nodes)) || nodes=$real_nodes
  if ((node >= nodes)); then tell stand-in; wrote 'done' 0; exit 0; fi
  tell "$start"
  command -v "$1" > /dev/null || { wrote missing "$1"; exit 127; }
  [ "$start" != torchrun ] || mapfile -d '' -t words < <(torchrun "$nodes"; printf '%s\0' "$@")
  # Who has no handler of its own survives SIGTERM until it has saved.
  if ((saves)); then (trap '' TERM; exec "${words[@]}") & else "${words[@]}" & fi
  child=$!
  trap told TERM
  ((saves)) && look_for_save &
  while :; do
    wait "$child"
    kill -0 "$child" 2> /dev/null || break
  done
  wait "$child"
  status=$?
  if ((status == 0)); then wrote 'done' 0
  elif ((status > 128 && status != 143)); then wrote signal $((status - 128))
  elif ((status != 143)); then wrote code "$status"; fi
  exit "$status"
}

cd "$cwd" || { wrote missing "$cwd"; exit 127; }
trap 'wrote code $?' EXIT # a set-up line that fails ends this, and is the program's fault
set -e
around
set +e
trap - EXIT
case $1 in
  main) run_node "${command[@]}" ;;
  first)
    declare -n chosen="first_$2"
    saves=0
    run_node "${chosen[@]}" ;;
esac
