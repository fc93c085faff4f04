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
  # Secrets come in a file, not with the container's description, which everybody reads who may talk to the daemon.
  if [ -f "$box/secrets" ]; then
    . "$box/secrets"
    rm -f "$box/secrets"
  fi
  unset box
  exec "$@"
}
