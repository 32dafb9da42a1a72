#!/bin/bash
# Runs a command, such as a group of ranks, and starts it again when it fails.
#
#   scripts/supervise.sh mpirun -n 4 peregrine serve --ep 4 --kv-directory local --kv-dir /var/lib/peregrine
#
# After a failure (any exit code but 0) it waits: one second, then twice as long each time, at most
# a minute; a run of ten minutes counts as sound and begins at one second again. Ends with exit code
# 0 when the command does. On SIGTERM or SIGINT the command is asked to end (mpirun by SIGUSR1, which
# it passes on to its ranks; others by SIGTERM) and its exit code is this script's.
set -u

if [ $# -eq 0 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi

first_wait=1
longest_wait=60
sound_seconds=600

child=
ending=
end() {
  ending=yes
  [ -z "$child" ] && exit 0
  case "$(basename "$1")" in
    mpirun | mpiexec | orterun) kill -USR1 "$child" ;;
    *) kill -TERM "$child" ;;
  esac
}
trap 'end "$1"' TERM INT

wait_seconds=$first_wait
while true; do
  began=$SECONDS
  "$@" &
  child=$!
  code=
  # A signal interrupts wait; the command still runs then.
  while [ -z "$code" ]; do
    wait "$child" 2>/dev/null  # the shell would announce a killed command
    code=$?
    if kill -0 "$child" 2>/dev/null; then code=; fi
  done
  child=
  if [ -n "$ending" ] || [ "$code" -eq 0 ]; then exit "$code"; fi
  [ $((SECONDS - began)) -ge "$sound_seconds" ] && wait_seconds=$first_wait
  echo "supervise: '$1' ended with exit code $code after $((SECONDS - began)) s, starting again in $wait_seconds s" >&2
  sleep "$wait_seconds" &
  wait $!
  [ -n "$ending" ] && exit 0
  wait_seconds=$((wait_seconds * 2 > longest_wait ? longest_wait : wait_seconds * 2))
done
