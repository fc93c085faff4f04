#!/bin/sh
### BEGIN INIT INFO
# Provides:          @SERVICE@
# Required-Start:    $network $remote_fs docker
# Required-Stop:     $network $remote_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
# Short-Description: Commonage agent, in a loop that starts it again
### END INIT INFO
# Written by Commonage.
pids=/run/@SERVICE@.pid
log=/var/log/@SERVICE@.log

is_running() {
  [ -s "$pids" ] && tr '\0' ' ' <"/proc/$(cat "$pids")/cmdline" 2>/dev/null | grep -q '@SERVICE@ loop'
}

end() {
  is_running || return 0
  # The loop and the agent are one process group.
  kill -s TERM -- "-$(cat "$pids")" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    is_running || break
    sleep 0.25
  done
  is_running && kill -s KILL -- "-$(cat "$pids")" 2>/dev/null
  rm -f "$pids"
}

begin() {
  is_running && return 0
  setsid --fork @SCRIPT@ loop </dev/null >>"$log" 2>&1
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
    is_running && return 0
    sleep 0.25
  done
  return 1
}

case "$1" in
  start) begin ;;
  stop) end ;;
  restart | force-reload) end && begin ;;
  status) is_running ;;
  loop)
    echo $$ >"$pids"
    trap 'kill "$agent" 2>/dev/null; exit 0' TERM INT
    while :; do
      # A log that grows without end fills the disk.
      [ "$(wc -c <"$log")" -lt 10000000 ] || : >"$log"
      @COMMAND@ run --config @SETTINGS@ &
      agent=$!
      wait "$agent"
      sleep 2
    done
    ;;
  *)
    echo "usage: $0 start|stop|restart|status" >&2
    exit 2
    ;;
esac
