#!/usr/bin/env bash
# Usage: scripts/mariadb.sh start|stop|status DIR PORT
#
# A private MariaDB with its own data, socket and pid file under DIR, on 127.0.0.1:PORT. The system's own server, if
# there is one, is not touched. `start` installs the server by apt when mariadbd is missing, waits until it answers and
# prints the DSN on stdout; starting a running one only prints the DSN. Commits are durable. Its user lapse_service, of the
# same password, may do what the services have to: read and write rows.
#
#   LAPSE_MARIADB_BUFFER_POOL   InnoDB buffer pool; default 1G
set -euo pipefail

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# = 3 ] || usage
cmd=$1 port=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
dir=$(cd "$2" && pwd)
data=$dir/data
pid_file=$dir/mariadb.pid
err_log=$dir/mariadb.log
dsn="lapse:lapse@tcp(127.0.0.1:$port)/"

log() { echo "mariadb: $*" >&2; }

# The pid of our server, or nothing. A pid that was given to another process since is not ours.
running() {
  local pid
  pid=$(cat "$pid_file" 2>/dev/null) || return 1
  tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -- "--datadir=$data" || return 1
  echo "$pid"
}

# Only the server's core: the full package would also start a system service.
install() {
  PATH=$PATH:/usr/sbin
  command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null && command -v mariadb >/dev/null && return
  "$here/apt-install.sh" mariadb-server-core mariadb-client-core || "$here/apt-install.sh" mariadb-server
}

start() {
  if running >/dev/null; then echo "$dsn"; return; fi
  install
  rm -f "$pid_file"
  local opts=()
  [ "$(id -u)" = 0 ] && opts+=(--user=root)
  if [ ! -d "$data/mysql" ]; then
    mariadb-install-db --no-defaults "${opts[@]}" --datadir="$data" --skip-test-db >"$dir/install.log" 2>&1 ||
      { tail -n 20 "$dir/install.log" >&2; log "could not make a data directory in $data"; exit 1; }
  fi
  cat >"$dir/init.sql" <<'SQL'
CREATE USER IF NOT EXISTS 'lapse'@'%' IDENTIFIED BY 'lapse', 'lapse'@'localhost' IDENTIFIED BY 'lapse';
GRANT ALL PRIVILEGES ON `lapse%`.* TO 'lapse'@'%', 'lapse'@'localhost';
GRANT PROCESS ON *.* TO 'lapse'@'%', 'lapse'@'localhost';
CREATE USER IF NOT EXISTS 'lapse_service'@'%' IDENTIFIED BY 'lapse', 'lapse_service'@'localhost' IDENTIFIED BY 'lapse';
GRANT SELECT, INSERT, UPDATE, DELETE ON `lapse%`.* TO 'lapse_service'@'%', 'lapse_service'@'localhost';
SQL
  # The socket is relative to the data directory, since a socket's full path may have no more than 107 characters.
  setsid mariadbd --no-defaults "${opts[@]}" --datadir="$data" --socket=mariadb.sock --pid-file="$pid_file" \
    --bind-address=127.0.0.1 --port="$port" --skip-name-resolve --init-file="$dir/init.sql" \
    --skip-log-bin --innodb-flush-log-at-trx-commit=1 --innodb-doublewrite=1 \
    --innodb-buffer-pool-size="${LAPSE_MARIADB_BUFFER_POOL:-1G}" --innodb-log-file-size=512M \
    --max-connections=400 --max-allowed-packet=64M --default-time-zone=+00:00 \
    --character-set-server=utf8mb4 --collation-server=utf8mb4_bin \
    >>"$err_log" 2>&1 </dev/null &
  local child=$! deadline=$((SECONDS + 90))
  until running >/dev/null &&
      mariadb --no-defaults -h 127.0.0.1 -P "$port" -u lapse -plapse -e 'DO 1' >/dev/null 2>&1; do
    if ! kill -0 "$child" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      kill "$child" 2>/dev/null || true
      grep -E 'ERROR' "$err_log" | tail -n 5 >&2 || true
      log "did not start on port $port; its log is $err_log"
      exit 1
    fi
    sleep 0.2
  done
  echo "$dsn"
}

stop() {
  local pid
  pid=$(running) || { log "not running"; return; }
  kill "$pid"
  for _ in $(seq 300); do
    running >/dev/null || return 0
    sleep 0.1
  done
  log "pid $pid did not stop within 30 s, killing it"
  kill -9 "$pid"
}

case $cmd in
  start) start ;;
  stop) stop ;;
  status) if pid=$(running); then echo "running pid=$pid dsn=$dsn"; else echo "stopped"; exit 1; fi ;;
  *) usage ;;
esac
