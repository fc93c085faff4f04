# Runs one attempt and writes how it ended, so that this is known even if the control plane was down.
# Called by processes.py: sh shim.sh RUN_FOLDER BOOT_ID GROUPS COMMAND..., in a session of its own, output to the log.
# GROUPS: the cgroup.procs files that the command joins, separated by colons. The shim itself stays outside, so that
# neither a limit nor a stop of the attempt affects it. It forks only the command: a no-op job is mostly this file.
# In braces, so that the shell has read all of it before it begins: an upgrade may replace this file meanwhile.
{
  run=$1 boot=$2 groups=$3
  shift 3
  # The creator of `pid` runs the attempt; a second shim of the same attempt, or one that was stopped before it
  # started, finds the file and exits. The start time tells this process from a later one with the same number.
  read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ began _ </proc/self/stat
  set -C
  { echo "$$ $began $boot" >"$run/pid"; } 2>/dev/null || exit 0
  set +C
  # Outlive the command, even if the whole session gets a signal; the command itself gets the usual handlers back.
  trap : TERM INT HUP
  (
    IFS=:
    for group in $groups; do
      echo 0 >"$group" || exit 125
    done
    exec "$@"
  )
  code=$?
  # Processes that the command left behind end with it.
  if [ -n "$groups" ]; then
    while read -r left; do
      kill -9 "$left"
    done <"${groups%%:*}" 2>/dev/null
  fi
  # On a full disk, write into the reserved file and rename it: others might take the space if it were deleted.
  echo "$code" 2>/dev/null >"$run/exit" || { echo "$code" 1<>"$run/room" && mv -f "$run/room" "$run/exit"; }
  exit "$code"
}
