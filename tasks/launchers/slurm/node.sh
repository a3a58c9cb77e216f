# --- from here on the same for every job: tasks/launchers/slurm/node.sh of the day it was submitted ---
# Run by srun once a node (main, first), and by torchrun once a process (rank). How each ended is one line in ranks/:
# when, of which kind (signal, code or missing of a rank; done of a node), which.
set -u
umask 077
node=${SLURM_NODEID:-0} rank=${LOCAL_RANK:-0}

wrote() { # how this process ended: a kind and which
  local file=$node.$rank
  [ "$1" != done ] || file=$node.done
  mkdir -p "$folder/ranks"
  echo "$(date +%s.%N) $1 $2" > "$folder/ranks/.$file" && mv "$folder/ranks/.$file" "$folder/ranks/$file"
}

tell() { # what this node runs, for the report: a stand-in says so
  mkdir -p "$folder/nodes"
  printf '{"node": "%s", "runs": "%s", "attempt": %s, "job": "%s", "step": "%s", "time": %s}\n' \
    "${SLURMD_NODENAME:-$HOSTNAME}" "$1" "$attempt" "$SLURM_JOB_ID" "${SLURM_STEP_ID:-}" "$(date +%s)" \
    > "$folder/nodes/${SLURMD_NODENAME:-$HOSTNAME}.json"
}

saving() { # SIGTERM reached every process of the job: the state is worth keeping unless a gate ended it
  if grep -q '"save": false' "$folder/cancel.json" 2> /dev/null; then kill -KILL "$child"; else kill -USR1 "$child"; fi
}

run_rank() { # the command, which saves on SIGUSR1 if it can; its exit status becomes ours
  local status
  command -v "$1" > /dev/null || { wrote missing "$1"; exit 127; }
  if ((saves)); then
    trap saving TERM
    trap 'kill -USR1 "$child" 2> /dev/null' USR1
    (trap '' TERM; exec "$@") & # who has no handler of its own survives until it has saved
  else
    trap : TERM # Slurm sends it to the command as well; were its parent gone, Slurm might lose sight of it
    "$@" &
  fi
  child=$!
  while :; do
    wait "$child"
    kill -0 "$child" 2> /dev/null || break
  done
  wait "$child"
  status=$?
  if ((status > 128 && status != 143)); then wrote signal $((status - 128))
  elif ((status > 0 && status != 143)); then wrote code "$status"; fi
  exit "$status"
}

pass_on_save() { # a file asks for it, which needs no controller: look for it while the ranks of this node live
  local pid task
  while kill -0 "$1" 2> /dev/null; do
    if [ -e "$folder/save" ]; then
      case $2 in
        command) kill -USR1 "$1" ;; # bash, which waits for the command
        torchrun) for task in /proc/"$1"/task/*/children; do for pid in $(< "$task"); do kill -USR1 "$pid"; done; done ;;
      esac
      return
    fi
    sleep 0.5
  done
}

run_torchrun() { # on this node: one torchrun, one rank a process; all meet at the first node
  local here=()
  case $SCALEUP_FIRST_NODE in 127.*) here=(--local-addr=127.0.0.1) ;; esac
  # One shared store over rendezvous rounds misleads late joiners in torch 2.13.
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  "${python[@]}" -m torch.distributed.run --nnodes="$1" --nproc-per-node="$processes" \
    --rdzv-backend=c10d --rdzv-endpoint="$SCALEUP_FIRST_NODE:$SCALEUP_PORT" \
    --rdzv-id="$SLURM_JOB_ID.$SLURM_STEP_ID" --rdzv-conf="$rendezvous" "${here[@]}" \
    --max-restarts=0 --monitor-interval=0.1 --no-python bash "$folder/node.sh" rank "${@:2}"
}

run_node() { # the command of this node, on the nodes that really run it
  local nodes=${SLURM_STEP_NUM_NODES:-$SLURM_JOB_NUM_NODES} how child status
  ((real_nodes == 0 || nodes <= real_nodes)) || nodes=$real_nodes
  if ((node >= nodes)); then tell stand-in; wrote done 0; exit 0; fi
  tell "$start"
  how=$start
  if [ "$start" = torchrun ]; then run_torchrun "$nodes" "$@" & else bash "$folder/node.sh" rank "$@" & fi
  child=$!
  trap : TERM # they have got it too, and end in their own time
  ((saves)) && pass_on_save "$child" "$how" &
  while :; do
    wait "$child"
    kill -0 "$child" 2> /dev/null || break
  done
  wait "$child"
  status=$?
  ((status)) || wrote done 0
  exit "$status"
}

cd "$cwd" || { wrote missing "$cwd"; exit 127; }
case $1 in
  rank) run_rank "${@:2}" ;;
  main) run_node "${command[@]}" ;;
  first)
    declare -n chosen="first_$2"
    saves=0
    run_node "${chosen[@]}" ;;
esac
