# Runs one attempt and writes down how it ended, so that this is known even if the control plane was away.
# Called by spawn.py: sh shim.sh RUN_FOLDER BOOT_ID GROUPS COMMAND..., in a session of its own, output going to the log.
# GROUPS: the cgroup.procs files that the command joins, separated by colons. The shim itself stays outside, so that
# neither a limit nor a stop of the attempt hits it. No forks but the command's: a no-op job is mostly this file.
# In braces, so that the shell has read all of it before it begins: an upgrade may replace this file meanwhile.
{
  run=$1 boot=$2 groups=$3
  shift 3
  # Whoever creates `pid` runs the attempt; a second shim of the same attempt, or one that was stopped before it
  # started, finds the file and leaves. The start time tells this process from a later one with the same number.
  read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ began _ </proc/self/stat
  set -C
  { echo "$$ $began $boot" >"$run/pid"; } 2>/dev/null || exit 0
  set +C
  # Outlive the command, whatever is sent to the whole session; the command itself gets the usual handlers back.
  trap : TERM INT HUP
  (
    IFS=:
    for group in $groups; do
      echo 0 >"$group" || exit 125
    done
    exec "$@"
  )
  code=$?
  # What the command left behind ends with it.
  if [ -n "$groups" ]; then
    while read -r left; do
      kill -9 "$left"
    done <"${groups%%:*}" 2>/dev/null
  fi
  # On a full disk there is room where the order's author left some; who takes that in between has won.
  echo "$code" 2>/dev/null >"$run/exit" || { rm -f "$run/room" && echo "$code" >"$run/exit"; }
  exit "$code"
}
