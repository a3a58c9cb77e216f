# --- from here on the same for every job: tasks/launchers/slurm/batch.sh of the day it was submitted ---
# One srun at a time; a death by signal is another srun in the same allocation while that gets somewhere, a nonzero
# exit code is the program's fault and ends the job. run.json is what this script remembers when Slurm starts it again
# (a lost node, preemption, the next segment); exit.json is its last word, and outlives what slurmctld remembers.
set -u
export SCALEUP_JOB=$name
reason='' code=null signal='' detail='' timer='' steps=-1 ended='' running=main phase=idle early=''

say() { echo "[scaleup] $*"; }
now() { date +%s; }
plain() { tr -d '"\\' | tr '\n\t' '  ' | cut -c 1-400; }

whole() { # write standard input to a file of the folder, so that a reader sees all of it or nothing
  cat > "$folder/.$1.$SLURM_JOB_ID" && sync "$folder/.$1.$SLURM_JOB_ID" 2> /dev/null
  mv -f "$folder/.$1.$SLURM_JOB_ID" "$folder/$1"
}

known() { # a value of run.json, which has one key a line, or a default
  local found
  found=$(sed -n "s/^ \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$folder/run.json" 2> /dev/null)
  echo "${found:-$2}"
}

remember() { # begun is 0 where this script saw its end: seconds are in used then, and in cut those of a run cut off
  whole run.json << JSON
{
 "job": "$SLURM_JOB_ID",
 "started": $started,
 "begun": $begun,
 "used": $used,
 "restarts": $restarts_done,
 "requeues": $requeues,
 "segments": $segments,
 "fruitless": $fruitless,
 "furthest": $furthest,
 "kept": "$kept",
 "cut": $cut,
 "nodes": "$SLURM_JOB_NODELIST"
}
JSON
}

finish() { # the end of this job, for whoever asks: reason, exit code, signal, detail
  reason=$1 code=${2:-null} signal=${3:-} detail=${4:-}
  say "the job is over: $reason $detail"
  case $reason in finished) exit 0 ;; program) exit "$code" ;; *) exit 1 ;; esac
}

last_word() { # on every exit of this script; without a reason Slurm knows why it ended, and may start it again
  if ((begun > 0)); then
    [ "$ended" != terminated ] || cut=$(($(now) - begun))
    used=$((used + $(now) - begun)) begun=0
  fi
  remember
  [ -n "$reason" ] || return 0
  whole exit.json << JSON
{
 "reason": "$reason",
 "code": $code,
 "signal": $([ -n "$signal" ] && echo "\"$signal\"" || echo null),
 "detail": "$(plain <<< "$detail")",
 "restarts": $((restarts_done + requeues)),
 "fruitless": $fruitless,
 "started": $started,
 "time": $(now),
 "used": $used,
 "segments": $segments,
 "job": "$SLURM_JOB_ID",
 "nodes": "$SLURM_JOB_NODELIST"
}
JSON
}

progressed() { # whether a new step or checkpoint came since the last call
  local step there found=1
  step=$(tail -c 65536 "$metrics" 2> /dev/null | grep -o '"step": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -n 1)
  there=$(ls -A "$checkpoints" 2> /dev/null | cksum | cut -d ' ' -f 1)
  ((${step:-0} > furthest)) && furthest=$step found=0
  [ "$there" != "$kept" ] && kept=$there found=0
  return "$found"
}

trim_torn_line() { # cut the half line that a death left at the end of metrics, before the next try appends to it
  [ -s "$metrics" ] && [ "$(tail -c 1 "$metrics" | od -An -tx1 | tr -d ' ')" != 0a ] || return 0
  truncate -s "-$(tail -n 1 "$metrics" | wc -c)" "$metrics"
}

checkpoint_seconds() { # between the two newest checkpoints; 0 where there are fewer
  local times
  mapfile -t times < <(find "$checkpoints" -mindepth 1 -maxdepth 1 ! -name '.*' -printf '%T@\n' 2> /dev/null | sort -rn)
  ((${#times[@]} < 2)) && echo 0 || echo $((${times[0]%.*} - ${times[1]%.*}))
}

trap 'attend USR1' USR1 # Slurm, some time before the limit; or somebody who wrote cancel.json
trap 'attend ALRM' ALRM # our own clock
trap 'attend TERM' TERM # scancel, preemption, a time limit: every process of the job got it, and soon a SIGKILL

# --- one srun ---
start_step() { # what node.sh shall do, on how many nodes
  rm -rf "$folder/ended" && mkdir -p "$folder/ended" "$folder/nodes"
  steps=$((steps + 1))
  "${srun[@]}" --nodes="$1" --ntasks="$1" "${contained[@]}" bash "$folder/node.sh" "${@:2}" &
  step=$!
}

all_done() { # srun ends with 0 as well where a node was lost: what counts is what each node wrote
  (($(cat "$folder"/ended/* 2> /dev/null | grep -c ' done ') == nodes))
}

first_death() { # of a kind (signal, code, missing), the earliest that a node wrote down: its value
  cat "$folder"/ended/* 2> /dev/null | sort -n | awk -v kind="$1" '$2 == kind {print $3; exit}'
}

run_first() { # commands that go before the trainer; one that fails or takes too long stops nothing
  local number seconds
  running=first
  for number in "${!first_nodes[@]}"; do
    [ ! -e "$folder/cancel.json" ] || finish cancelled
    seconds=$first_seconds
    (($(left) > seconds)) || seconds=$(left)
    start_step "${first_nodes[$number]}" first "$number"
    wait_for_step "$seconds"
    case $ended in
      cancelled | hours) finish "$ended" ;;
      terminated) exit 1 ;;
      too_long) say "command $number before the job took longer than $first_seconds s; the job goes on without it" ;;
      *) ((step_code == 0)) || say "command $number before the job ended with $step_code; the job goes on without it" ;;
    esac
  done
  running=main
}

next_segment() { # a planned end: neither an attempt nor a failure
  segments=$((segments + 1)) fruitless=0
  say "segment $segments is over after $((used + $(now) - begun)) s of training; it goes on as the next one"
  used=$((used + $(now) - begun)) begun=0
  remember
  scontrol requeue "$SLURM_JOB_ID" || finish lost null '' "its next segment could not be queued"
  ended=requeued
  sleep 60 & # Slurm ends this script, by a SIGTERM and then otherwise
  wait "$!"
  kill "$!" 2> /dev/null
  exit 1
}

lost_nodes() { # of this allocation, those that are down or do not answer
  sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%N %T' 2> /dev/null |
    awk '$2 ~ /^down/ || $2 ~ /\*$/ {print $1}' | sort -u | paste -sd , -
}

leave_to_slurm() { # a node is lost: its partners fail too, and srun may be back before Slurm ends this script
  say "node $1 is lost; Slurm ends this start of the job"
  sleep 120 &
  wait "$!"
  kill "$!" 2> /dev/null
  [ "$early" != TERM ] || { ended=terminated && exit 1; }
  finish lost null '' "node $1 was lost, and Slurm did not end the job"
}

again_or_end() { # after a death that was not the program's fault: what died, the reason if that is the end
  if progressed; then fruitless=0
  elif ((fruitless >= restarts)); then finish "$2" null "$1" "$3"
  else fruitless=$((fruitless + 1)); fi
  ((restarts_done + requeues < max_restarts)) || finish max_restarts null "$1" "$3"
  restarts_done=$((restarts_done + 1))
  remember
}

# --- from the start ---
[ ! -e "$folder/exit.json" ] || exit 0 # it was over when a node of it was lost, and Slurm started it once more
mkdir -p "$folder"
(set -o noclobber && echo "$SLURM_JOB_ID" > "$folder/owner") 2> /dev/null
if [ "$(cat "$folder/owner")" != "$SLURM_JOB_ID" ]; then
  say "job $SLURM_JOB_ID is one too many: $(cat "$folder/owner") of the same name is the job"
  exit 0
fi
started=$(known started "$(now)") used=$(known used 0) begun=$(known begun 0)
restarts_done=$(known restarts 0) requeues=$(known requeues 0) segments=$(known segments 0)
cut=$(known cut -1) fruitless=$(known fruitless 0) furthest=$(known furthest 0) kept=$(known kept '')
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
getent hosts "$first" > /dev/null || first=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
export SCALEUP_FIRST_NODE=$first
# shellcheck disable=SC2154  # set before this line, where the job's own values stand
export SCALEUP_PORT=$((port + SLURM_JOB_ID % 1000))
trap last_word EXIT
[ ! -e "$folder/cancel.json" ] || { begun=0 && finish cancelled; }

if ((begun > 0)); then # its node was lost: it ran until it last wrote
  seen=$(stat -c %Y "$metrics" 2> /dev/null || echo "$begun")
  cut=$((seen > begun ? seen - begun : 0)) begun=0 used=$((used + cut))
fi
if ((cut >= 0)); then # a lost node, or preempted
  requeues=$((requeues + 1))
  if progressed; then fruitless=0
  elif ((cut >= $(checkpoint_seconds))); then fruitless=$((fruitless + 1)); fi # sooner, it could not have saved
  cut=-1
  ((fruitless <= restarts)) || finish no_progress null requeue
  say "Slurm starts it again on $SLURM_JOB_NODELIST, restart $((restarts_done + requeues))"
fi
begun=$(now)
progressed
remember
rm -f "$folder/save"
(($(left) > 0)) || finish hours
((furthest > 0)) || run_first

while :; do
  trim_torn_line
  start_step "$nodes" main
  wait_for_step "$(until_asked)"
  case $ended in
    cancelled | hours) finish "$ended" "$( ((step_code < 128)) && echo "$step_code" || echo null)" ;;
    segment) next_segment ;;
    terminated) exit 1 ;;
  esac
  if ((step_code > 0)) || ! all_done; then
    lost=$(lost_nodes)
    [ -z "$lost" ] || leave_to_slurm "$lost"
  fi
  died=$(first_death signal) failed=$(first_death code) missing=$(first_death missing)
  if [ -n "$missing" ]; then
    finish cannot_start 127 '' "$missing: no such program on the node"
  elif [ -n "$died" ]; then
    again_or_end "SIG$(kill -l "$died")" no_progress ''
    say "the job died by SIG$(kill -l "$died"); restart $restarts_done of $max_restarts"
  elif [ -n "$failed" ]; then
    finish program "$failed"
  elif ((step_code == 0)) && all_done; then
    finish finished 0
  else # srun's own trouble: no node says that it failed
    again_or_end '' lost "srun ended with $step_code: $(grep -a 'srun: error' "$folder/log.txt" | tail -n 1)"
    say "srun ended with $step_code and no node failed; restart $restarts_done of $max_restarts"
  fi
done
