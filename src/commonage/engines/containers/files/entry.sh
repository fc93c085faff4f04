# The first program in each of our containers; runs the attempt's command, at most once. $1 and on: the command.
# A daemon asked to start a container that has ended would run it again. So the creator of `claim` in the control
# folder, which belongs to the control plane, decides: this script, that the command runs now; or a stop, that it must
# never run.
# In braces, so that the shell has read all of it before it begins.
{
  control=/run/commonage/control
  exec >>/run/commonage/log 2>&1
  if [ -n "${COMMONAGE_GPU_PRELOAD-}" ]; then
    # An interposer enforces its share. Where the image's C library does not load it, as into this shell, nothing would.
    loaded=
    while read -r line; do
      case "$line" in *' /usr/local/vgpu/libvgpu.so') loaded=yes ;; esac
    done <"/proc/$$/maps"
    [ -n "$loaded" ] || exit 96
    mkdir -m 1777 /tmp/vgpulock 2>/dev/null # older versions wait for ever where it is missing
  fi
  set -C
  if ! { echo ran >"$control/claim"; } 2>/dev/null; then
    { : >"$control/again"; } 2>/dev/null
    exit 143
  fi
  set +C
  if [ -f "$control/stop" ]; then
    # The control plane has no daemon on this node: it writes its request to this file, which is polled every
    # second. The polling process is no child of the command, and starts before the secrets exist.
    (
      (
        asked=
        trap '' HUP INT QUIT TERM USR1 USR2
        while sleep 1 && kill -0 "$$"; do
          stop=
          read -r stop <"$control/stop"
          command=
          read -r command rest <"/proc/$$/task/$$/children"
          case "$stop$asked" in
            term) kill -TERM "${command:--$$}" && asked=already ;;
            kill*) kill -KILL "${command:--$$}" ;;
          esac
        done
      ) >/dev/null 2>&1 &
    )
  fi
  # Secrets come in a file, not in the container's description, which every user of the daemon can read. On a Swarm the
  # Swarm delivers it, like this script: other nodes can write to the control folder, so nothing in it is run.
  if [ "$0" = /run/commonage/entry ]; then
    [ ! -f /run/commonage/secrets ] || . /run/commonage/secrets
  elif [ -f "$control/secrets" ]; then
    . "$control/secrets"
    rm -f "$control/secrets"
  fi
  # Adds the folders mounted here to the search paths (injected.py), and keeps the values of the image or the user.
  [ ! -d /run/commonage/python ] || export PYTHONPATH="/run/commonage/python${PYTHONPATH:+:$PYTHONPATH}"
  [ ! -d /run/commonage/jupyter ] ||
    export JUPYTER_CONFIG_PATH="${JUPYTER_CONFIG_PATH:+$JUPYTER_CONFIG_PATH:}/run/commonage/jupyter"
  if [ -n "${COMMONAGE_GANG_HOSTS-}" ]; then
    (
      IFS=,
      for host in $COMMONAGE_GANG_HOSTS; do
        echo "$host slots=$COMMONAGE_GANG_SLOTS"
      done
    ) >"$COMMONAGE_HOST_FILE"
  fi
  if ! [ -f "$control/stop" ]; then
    unset control
    exec "$@"
  fi
  # Swarm does not report whether the kernel killed it for lack of memory either, so the script stays to detect that. A
  # signal for the command must not end the script: Docker's init sends it to both (TINI_KILL_PROCESS_GROUP).
  signalled=
  trap : HUP USR1 USR2
  trap "signalled=' signalled'" INT QUIT TERM
  (
    unset control
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
  echo "$code$oom$signalled" 2>/dev/null >"$control/end"
  exit "$code"
}
