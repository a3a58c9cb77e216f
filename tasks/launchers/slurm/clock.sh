# --- the same for every job: tasks/launchers/slurm/clock.sh, the time that a job has and who may end it sooner ---
alarm_in() { # one alarm at a time
  quiet
  (trap 'kill $sleeping 2> /dev/null; exit' TERM; sleep "$1" & sleeping=$!; wait $sleeping; kill -ALRM $$) &
  timer=$!
}
quiet() { [ -z "$timer" ] || kill "$timer" 2> /dev/null; timer=; }

attend() { # one of these signals, whenever it comes; ended says who ended the step
  case $1,$phase in
    *,idle) early=$1 ;; # before a step or between two
    TERM,*)
      phase=leaving
      quiet
      if [ -e "$folder/cancel.json" ]; then ended=cancelled; else ended=terminated; fi ;;
    USR1,running | ALRM,running)
      if [ -e "$folder/cancel.json" ]; then ended=cancelled; else ended=$(whose_time); fi
      if ((saves)) && [ "$running" = main ]; then
        say "it is asked to save and exit and has $(seconds_to_save) s"
        phase=saving
        : > "$folder/save"
        alarm_in "$(seconds_to_save)"
      else
        end_step
      fi ;;
    ALRM,saving) end_step ;;
    ALRM,stopping) phase=leaving && stop_step KILL ;;
  esac
}

end_step() {
  phase=stopping
  stop_step TERM
  alarm_in "$grace_seconds"
}

wait_for_step() { # until the step is over, at most so many seconds
  ended='' phase=running
  alarm_in "$1"
  [ -z "$early" ] || attend "$early"
  early=''
  while :; do
    wait "$step" # or a signal's trap
    kill -0 "$step" 2> /dev/null || break
  done
  phase=idle
  quiet
  wait "$step"
  step_code=$?
  rm -f "$folder/save"
}

stop_step() {
  if [ "$1" = KILL ]; then kill -TERM "$step"; else scancel --signal="$1" "$SLURM_JOB_ID.$steps" || kill -TERM "$step"; fi
}

left() { echo $((hours_seconds - used - $(now) + begun)); } # of the job's hours
segment_left() { echo $((segment_seconds - $(now) + begun)); }

whose_time() { # an alarm or Slurm's warning came: for the hours of the job, for its segment, or for a first command
  if [ "$running" = first ] && (($(left) > 0)); then echo too_long
  elif ((segment_seconds > 0 && $(left) > $(segment_left))); then echo segment
  else echo hours; fi
}

seconds_to_save() { # what is left of the hours, but a little at least
  local all=$save_seconds
  [ "$ended" != hours ] || (($(left) >= all)) || all=$(left)
  echo $((all > 1 ? all : 1))
}

until_asked() { # seconds of running before the trainer must be told to save; not in the first half of its hours
  local limit early=0
  limit=$(left)
  ((segment_seconds == 0 || limit <= $(segment_left))) || limit=$(segment_left)
  ((saves == 0)) || early=$((save_seconds < limit / 2 ? save_seconds : limit / 2))
  echo $((limit - early > 0 ? limit - early : 0))
}

