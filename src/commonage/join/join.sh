#!/bin/sh
# Joins this machine to @SITE@. Run it as root:
#
#   sh join.sh [--token-file FILE] [--plan] [options]     `--plan` only shows the changes; `--help` lists the options
#
# Asks for the join token, or reads it from FILE (`-`: standard input). It is not accepted on the command line, where every
# user of this machine could read it. Running it again changes nothing. Only Python is installed before the steps are shown.
set -eu

fail() {
  echo "join: $*" >&2
  exit 1
}

find_python() {
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null 2>&1 &&
      "$name" -c 'import sys, ssl, tarfile; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

install_python() {
  echo "join: installing Python 3.11 or later"
  if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends python3 >/dev/null
    find_python >/dev/null || apt-get install -y -qq --no-install-recommends python3.11 >/dev/null
  elif command -v dnf >/dev/null; then
    dnf install -y -q python3 >/dev/null
    find_python >/dev/null || dnf install -y -q python3.11 >/dev/null
  elif command -v zypper >/dev/null; then
    zypper --non-interactive --quiet install python311 >/dev/null
  else
    fail "Python 3.11 or later is required, and apt-get, dnf and zypper are missing: install Python by hand, then run this again"
  fi
}

read_token() {
  case $token_file in
    '')
      [ -t 0 ] || fail "a join token is required: pass --token-file FILE (-: standard input). \
Create a token with \`commonage node token\` on the control plane"
      trap 'stty echo; exit 130' INT TERM
      stty -echo
      printf 'Join token (not shown): ' >&2
      read -r token || true
      stty echo
      trap - INT TERM
      echo >&2
      ;;
    -) token=$(cat) ;;
    *) token=$(cat "$token_file") || fail "the join token cannot be read from $token_file" ;;
  esac
  case $token in
    cmj1.*) ;;
    *) fail "this is not a join token: create one with \`commonage node token\` on the control plane" ;;
  esac
}

main() {
  [ "$(id -u)" = 0 ] || fail "run this as root, because it changes the system: sudo sh join.sh"
  token_file='' bundle='' plan=''
  while [ $# -gt 0 ]; do
    case $1 in
      --token-file) token_file=${2:?needs a file} && shift 2 ;;
      --bundle) bundle=${2:?needs a file} && shift 2 ;;
      cmj1.*) fail "every user of this machine can read a token on the command line, so it is not accepted there. \
Revoke it (\`commonage node token --revoke\`), and pass a new one with --token-file or at the prompt" ;;
      *) break ;;
    esac
  done
  read_token
  for word; do [ "$word" != --plan ] || plan=yes; done
  if ! find_python >/dev/null; then
    if [ -n "$plan" ]; then
      echo "join: would install Python 3.11 or later; the other changes are known only after that"
      exit 0
    fi
    install_python
  fi
  python=$(find_python) || fail "Python 3.11 or later could not be installed; install it by hand, then run this again"
  work=$(mktemp -d /tmp/commonage-join-XXXXXX)
  # A folder that cannot be removed does not make the join a failure.
  trap 'rm -rf "$work" || echo "join: could not remove $work; remove it by hand" >&2' EXIT
  trap 'exit 130' INT TERM
  export COMMONAGE_JOIN_TOKEN="$token" COMMONAGE_JOIN_BUNDLE="$bundle" COMMONAGE_JOIN_WORK="$work"
  COMMONAGE_JOIN_AUTHORITY=$(authority)
  export COMMONAGE_JOIN_AUTHORITY
  client >"$work/client.py"
  "$python" -I "$work/client.py"
  (cd "$work" && PYTHONPATH="$work" PYTHONDONTWRITEBYTECODE=1 "$python" -s -m commonage.agent join "$@" </dev/null)
}

authority() {
  cat <<'END_OF_AUTHORITY'
@AUTHORITY@
END_OF_AUTHORITY
}

client() {
  cat <<'END_OF_CLIENT'
@CLIENT@
END_OF_CLIENT
}

main "$@"
