# The first program in every container of ours; runs the attempt's command, at most once. $1 and on: the command.
# A daemon asked to start a container that has ended would run it again. So whoever creates `claim` in the box, which is
# a folder of the control plane's, decides: this script, that the command runs now; or a stop, that it never shall.
# In braces, so that the shell has read all of it before it begins.
{
  box=/run/commonage/box
  exec >>/run/commonage/log 2>&1
  set -C
  if ! { echo ran >"$box/claim"; } 2>/dev/null; then
    { : >"$box/again"; } 2>/dev/null
    exit 143
  fi
  set +C
  if [ -f "$box/wish" ]; then
    # No daemon of the control plane's is on this machine: it asks by writing to this file, which is looked at every
    # second. Who looks is no child of the command's, and started before the secrets are there.
    (
      (
        asked=
        trap '' HUP INT QUIT TERM USR1 USR2
        while sleep 1 && kill -0 "$$"; do
          wish=
          read -r wish <"$box/wish"
          command=
          read -r command rest <"/proc/$$/task/$$/children"
          case "$wish$asked" in
            term) kill -TERM "${command:--$$}" && asked=already ;;
            kill*) kill -KILL "${command:--$$}" ;;
          esac
        done
      ) >/dev/null 2>&1 &
    )
  fi
  # Secrets come in a file, not with the container's description, which everybody reads who may talk to the daemon. On a
  # Swarm it comes from the Swarm, as this script does: the box lies where other machines write, so nothing in it is run.
  if [ "$0" = /run/commonage/entry ]; then
    [ ! -f /run/commonage/secrets ] || . /run/commonage/secrets
  elif [ -f "$box/secrets" ]; then
    . "$box/secrets"
    rm -f "$box/secrets"
  fi
  # What is mounted here goes on the search paths (injected.py), with what the image or the user set.
  [ ! -d /run/commonage/python ] || export PYTHONPATH="/run/commonage/python${PYTHONPATH:+:$PYTHONPATH}"
  [ ! -d /run/commonage/jupyter ] ||
    export JUPYTER_CONFIG_PATH="${JUPYTER_CONFIG_PATH:+$JUPYTER_CONFIG_PATH:}/run/commonage/jupyter"
  if ! [ -f "$box/wish" ]; then
    unset box
    exec "$@"
  fi
  # Nor does Swarm tell whether the kernel ended it for want of memory, so the script stays to see. It must not end by a
  # signal that is for the command: Docker's init sends such to both (TINI_KILL_PROCESS_GROUP), whoever it came from.
  outside=
  trap : HUP USR1 USR2
  trap "outside=' outside'" INT QUIT TERM
  (
    unset box
    exec "$@"
  )
  code=$?
  memory=/sys/fs/cgroup/memory.events
  [ -f "$memory" ] || memory=/sys/fs/cgroup/memory/memory.oom_control
  oom=
  if [ "$code" -ne 0 ] && [ -f "$memory" ]; then
    while read -r what count; do
      [ "$what" != oom_kill ] || [ "$count" = 0 ] || oom=' oom'
    done <"$memory"
  fi
  echo "$code$oom$outside" 2>/dev/null >"$box/end"
  exit "$code"
}
