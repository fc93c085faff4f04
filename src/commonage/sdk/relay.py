"""The programs that `port-forward` and `ssh` run in a workload: `sh -c SCRIPT NAME ARGUMENT…`, spoken to over its
stdin and stdout. They need no file there, and work with whatever the image has.
"""

from __future__ import annotations

MISSING = 127
"""Exit code if the image lacks what the script needs; stderr says what."""

_CONNECT = r"""
import os, select, socket, sys
try:
    to = socket.create_connection(("localhost", int(sys.argv[1])), 10)
except OSError as error:
    sys.exit(f"nothing answers at port {sys.argv[1]} in the workload: {error}")
to.settimeout(None)
def all_of(data):
    while data:
        data = data[os.write(1, data):]
os.write(2, b"connected\n")
reads = [0, to]
while to in reads:
    for one in select.select(reads, [], [])[0]:
        if one == 0:
            data = os.read(0, 65536)
            if data:
                try:
                    to.sendall(data)
                except OSError:
                    sys.exit(0)
            else:
                reads.remove(0)
                try:
                    to.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
        else:
            try:
                data = to.recv(65536)
            except OSError:
                data = b""
            if data:
                all_of(data)
            else:
                reads.remove(to)
"""

PORT = (
    "for python in python3 python; do\n"
    'if command -v "$python" >/dev/null 2>&1; then exec "$python" -I -S -c \'' + _CONNECT + '\' "$1"; fi\n'
    "done\n"
    'if command -v socat >/dev/null 2>&1; then echo connected >&2; exec socat - "TCP:localhost:$1"; fi\n'
    'echo "the image has neither python3 nor socat, one of which is needed to reach its ports" >&2\n'
    f"exit {MISSING}\n"
)
"""Connects stdin and stdout with the port $1 of the workload. Writes `connected` to stderr first."""

_CHECK = (
    'PATH="$PATH:/usr/sbin:/usr/local/sbin"\n'
    "for program in sshd ssh-keygen; do\n"
    'command -v "$program" >/dev/null 2>&1 || {\n'
    'echo "the image has no $program; add the package openssh-server to the image (no service has to run)" >&2\n'
    f"exit {MISSING}; }}\n"
    "done\n"
    'user=$(id -un 2>/dev/null) || { echo "the user $(id -u) of the image has no name in /etc/passwd; add one" >&2; '
    f"exit {MISSING}; }}\n"
)
USER = _CHECK + 'echo "$user"\n'
"""Prints the user of the workload. Fails if no SSH connection is possible, and says why."""

SSHD = (
    _CHECK
    + r"""
mask=$(umask)
umask 077
PATH="$PATH:/usr/sbin:/usr/local/sbin"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
trap 'exit 129' HUP INT TERM
printf '%s\n' "$1" >"$folder/keys"
ssh-keygen -q -t ed25519 -N '' -f "$folder/host" </dev/null >&2 || exit 1
# Sessions get the variables and the folder of the workload, which sshd would drop.
export -p >"$folder/variables"
pwd >"$folder/cwd"
cat >"$folder/enter" <<'END'
terminal=$TERM
. "$1/variables"
[ -z "$terminal" ] || { TERM=$terminal; export TERM; }
cd "$(cat "$1/cwd")" 2>/dev/null || cd
shell=$(command -v bash || command -v sh)
export SHELL="$shell"
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec "$shell" -c "$SSH_ORIGINAL_COMMAND"; fi
exec "$shell" -i
END
sftp=internal-sftp
for one in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server; do
  [ ! -x "$one" ] || sftp=$one
done
cat >"$folder/config" <<END
HostKey $folder/host
AuthorizedKeysFile $folder/keys
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
PrintMotd no
PrintLastLog no
LogLevel ERROR
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
X11Forwarding no
AcceptEnv LANG LC_*
Subsystem sftp $sftp
ForceCommand /bin/sh $folder/enter $folder
END
# sshd of root wants this folder, empty.
[ "$(id -u)" != 0 ] || mkdir -p -m 0755 /run/sshd
umask "$mask"
"$(command -v sshd)" -i -e -f "$folder/config"
"""
)
"""Runs an sshd for one connection over stdin and stdout, as the workload's user. $1: the public key that signs in."""
