#!/usr/bin/env bash
# Usage: scripts/with-services.sh COMMAND [ARGUMENTS…]
#
# Runs COMMAND with a database and a RocketMQ broker, and stops what it started afterwards, also on a signal. Each of
# the two comes from the first of these that is there:
#   1. an address in the environment (below);
#   2. a Docker engine that answers: containers of pinned images;
#   3. scripts/mariadb.sh and scripts/rocketmq.sh, on free ports, with data in a temporary directory.
#
# COMMAND sees (the first two may be given):
#   LAPSE_TEST_MYSQL_DSN         DSN with no database; its user may create databases named lapse_…. If there is a user
#                                lapse_service of the same password, processes are run as it
#   LAPSE_TEST_ROCKETMQ          the name server, 127.0.0.1:PORT
#   LAPSE_TEST_MYSQL_PID         the database server's process on this machine, if known, to read its CPU time from
#   LAPSE_TEST_BROKER_STOP, LAPSE_TEST_BROKER_KILL, LAPSE_TEST_BROKER_START
#                                shell commands that do so to the broker, unless it was given by address; it may
#                                take some more seconds until it answers
#   LAPSE_TEST_ROCKETMQ_DIR, LAPSE_TEST_ROCKETMQ_PORT, LAPSE_TEST_ROCKETMQ_VERSION
#                                arguments for scripts/rocketmq.sh, only when that script started the broker
# and these steer it:
#   LAPSE_ROCKETMQ_VERSION       default 5.5.0
#   LAPSE_SERVICES_DIR           keep data and logs in this directory instead of a temporary one
#   LAPSE_NO_DOCKER=1            do not look for a Docker engine
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,25s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
rocketmq_version=${LAPSE_ROCKETMQ_VERSION:-5.5.0}
mariadb_image=mariadb:10.11.18
rocketmq_image=apache/rocketmq:$rocketmq_version

log() { echo "services: $*" >&2; }

dir="" child="" port_db="" port_mq="" port_lock="" containers=() started_db="" started_mq=""

# shellcheck disable=SC2317 # called by trap
cleanup() {
  local status=$?
  trap '' INT TERM HUP
  trap - EXIT
  # The whole group: a test that was killed leaves the processes it had started.
  if [ -n "$child" ]; then kill -KILL -- "-$child" 2>/dev/null || true; fi
  local job
  for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; wait "$job" 2>/dev/null || true; done
  if [ -n "$started_mq" ]; then "$here/rocketmq.sh" kill "$rocketmq_version" "$dir/rocketmq" "$port_mq" || true; fi
  if [ -n "$started_db" ]; then "$here/mariadb.sh" stop "$dir/mariadb" "$port_db" || true; fi
  if [ ${#containers[@]} -gt 0 ]; then docker rm -f -v "${containers[@]}" >/dev/null 2>&1 || true; fi
  if [ -n "$dir" ] && [ -z "${LAPSE_SERVICES_DIR:-}" ]; then rm -rf "$dir"; fi
  if [ -n "$port_lock" ]; then rm -f "$port_lock"; fi
  exit "$status"
}
# shellcheck disable=SC2317 # called by trap
interrupted() {
  log "interrupted"
  if [ -n "$child" ]; then
    kill -INT -- "-$child" 2>/dev/null || true
    local _
    for _ in $(seq 100); do kill -0 "$child" 2>/dev/null || break; sleep 0.1; done
  fi
  exit 130
}
trap cleanup EXIT
trap interrupted INT TERM HUP

answers() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# Ports come in blocks of 20 below the range that the kernel hands to clients. A block is locked while this script runs,
# so that two at once, whose servers are not up yet, never choose the same.
choose_ports() {
  local tries=0 base p
  while [ $tries -lt 200 ]; do
    tries=$((tries + 1))
    base=$((20000 + RANDOM % 600 * 20))
    port_lock=${TMPDIR:-/tmp}/lapse-ports-$base.lock
    exec 8>"$port_lock"
    flock -n 8 || { port_lock=; continue; }
    for p in $base $((base + 1)) $((base + 9)) $((base + 11)) $((base + 12)); do
      ! answers 127.0.0.1 "$p" || continue 2
    done
    port_db=$base port_mq=$((base + 1))
    return
  done
  log "no free ports"
  exit 1
}

use_docker=
docker_answers() {
  if [ -z "$use_docker" ]; then
    use_docker=no
    if [ -z "${LAPSE_NO_DOCKER:-}" ] && command -v docker >/dev/null && timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; then
      use_docker=yes
    fi
  fi
  [ $use_docker = yes ]
}

# wait_for SECONDS WHAT COMMAND…
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || { log "$what did not come up"; exit 1; }
    sleep 0.5
  done
}

docker_db() {
  local id
  id=$(docker run -d -p "127.0.0.1:$port_db:3306" -e MARIADB_ROOT_PASSWORD=lapse "$mariadb_image" \
    --skip-log-bin --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size="${LAPSE_MARIADB_BUFFER_POOL:-1G}" \
    --max-connections=400 --default-time-zone=+00:00 --character-set-server=utf8mb4 --collation-server=utf8mb4_bin)
  containers+=("$id")
  # By TCP: while it sets itself up, the image's server listens on its socket only.
  wait_for 120 "the database" docker exec "$id" mariadb -h 127.0.0.1 -uroot -plapse -e 'DO 1'
  docker exec -i "$id" mariadb -uroot -plapse <<'SQL'
CREATE USER 'lapse'@'%' IDENTIFIED BY 'lapse';
GRANT ALL PRIVILEGES ON `lapse%`.* TO 'lapse'@'%';
GRANT PROCESS ON *.* TO 'lapse'@'%';
CREATE USER 'lapse_service'@'%' IDENTIFIED BY 'lapse';
GRANT SELECT, INSERT, UPDATE, DELETE ON `lapse%`.* TO 'lapse_service'@'%';
SQL
  export LAPSE_TEST_MYSQL_DSN="lapse:lapse@tcp(127.0.0.1:$port_db)/"
  local pid
  pid=$(docker inspect -f '{{.State.Pid}}' "$id")
  # On a desktop engine the process lives in another machine.
  if grep -qa -e mariadbd -e mysqld "/proc/$pid/cmdline" 2>/dev/null; then export LAPSE_TEST_MYSQL_PID=$pid; fi
  log "database: $(docker exec "$id" mariadb -uroot -plapse -Nse 'SELECT VERSION()') in Docker ($mariadb_image), 127.0.0.1:$port_db"
}

docker_mq() {
  local broker_port=$((port_mq + 10)) ns broker
  # The broker lives in the name server's network, since it tells clients one address for itself: 127.0.0.1.
  ns=$(docker run -d -p "127.0.0.1:$port_mq:$port_mq" -p "127.0.0.1:$broker_port:$broker_port" \
    -p "127.0.0.1:$((broker_port - 2)):$((broker_port - 2))" -e JAVA_OPT_EXT="-Xms64m -Xmx256m -Xmn64m" \
    "$rocketmq_image" sh -c "echo listenPort=$port_mq >/tmp/namesrv.conf && sh mqnamesrv -c /tmp/namesrv.conf")
  containers+=("$ns")
  broker=$(docker run -d --network "container:$ns" -e JAVA_OPT_EXT="-Xms1g -Xmx1g -Xmn512m -XX:MaxDirectMemorySize=512m" "$rocketmq_image" sh -c "
    printf '%s\n' brokerClusterName=lapse brokerName=broker-a brokerId=0 brokerIP1=127.0.0.1 listenPort=$broker_port \
      namesrvAddr=127.0.0.1:$port_mq mappedFileSizeCommitLog=67108864 mappedFileSizeTimerLog=16777216 diskMaxUsedSpaceRatio=98 \
      timerPrecisionMs=100 autoCreateTopicEnable=false traceTopicEnable=true waitTimeMillsInSendQueue=1000 >/tmp/broker.conf
    sh mqbroker -c /tmp/broker.conf")
  containers+=("$broker")
  wait_for 120 "the broker" docker exec "$broker" sh -c "sh mqadmin clusterList -n 127.0.0.1:$port_mq | grep -q 127.0.0.1:$broker_port"
  export LAPSE_TEST_ROCKETMQ=127.0.0.1:$port_mq
  export LAPSE_TEST_BROKER_STOP="docker stop -t 10 $broker >/dev/null"
  export LAPSE_TEST_BROKER_KILL="docker kill $broker >/dev/null"
  export LAPSE_TEST_BROKER_START="docker start $broker >/dev/null"
  log "broker:   RocketMQ $rocketmq_version in Docker ($rocketmq_image), name server $LAPSE_TEST_ROCKETMQ"
}

# The version of a database that was given, if there is a client to ask with.
given_db() {
  local rest=${LAPSE_TEST_MYSQL_DSN} user password address version=
  user=${rest%%:*} password=${rest#*:}
  password=${password%@tcp(*} address=${rest##*@tcp(}
  address=${address%%)*}
  answers "${address%:*}" "${address##*:}" || { log "LAPSE_TEST_MYSQL_DSN is set, but nothing answers at $address"; exit 1; }
  local client
  client=$(command -v mariadb || command -v mysql || true)
  if [ -n "$client" ]; then
    version=$(MYSQL_PWD=$password "$client" --no-defaults -h "${address%:*}" -P "${address##*:}" -u "$user" -Nse 'SELECT VERSION()' 2>/dev/null || true)
  fi
  log "database: ${version:-version unknown,} as given, $address"
}

need_db="" need_mq=""
[ -n "${LAPSE_TEST_MYSQL_DSN:-}" ] || need_db=1
[ -n "${LAPSE_TEST_ROCKETMQ:-}" ] || need_mq=1
if [ -n "$need_db$need_mq" ]; then choose_ports; fi

if [ -z "$need_db" ]; then given_db; elif docker_answers; then docker_db; else started_db=1; fi
if [ -z "$need_mq" ]; then
  answers "${LAPSE_TEST_ROCKETMQ%:*}" "${LAPSE_TEST_ROCKETMQ##*:}" ||
    { log "LAPSE_TEST_ROCKETMQ is set, but nothing answers at $LAPSE_TEST_ROCKETMQ"; exit 1; }
  log "broker:   as given, name server $LAPSE_TEST_ROCKETMQ"
elif docker_answers; then docker_mq; else started_mq=1; fi

if [ -n "$started_db$started_mq" ]; then
  if [ -n "${LAPSE_SERVICES_DIR:-}" ]; then
    mkdir -p "$LAPSE_SERVICES_DIR"
    dir=$(cd "$LAPSE_SERVICES_DIR" && pwd)
  else
    dir=$(mktemp -d "${TMPDIR:-/tmp}/lapse-services.XXXXXX")
  fi
  # Both at once, since each mostly waits; each in a process group, so that an interrupted download ends as well.
  db_job="" mq_job=""
  set -m
  if [ -n "$started_db" ]; then "$here/mariadb.sh" start "$dir/mariadb" "$port_db" >/dev/null 8>&- & db_job=$!; fi
  if [ -n "$started_mq" ]; then "$here/rocketmq.sh" start "$rocketmq_version" "$dir/rocketmq" "$port_mq" >/dev/null 8>&- & mq_job=$!; fi
  set +m
  failed=
  if [ -n "$db_job" ]; then wait "$db_job" || failed=1; fi
  if [ -n "$mq_job" ]; then wait "$mq_job" || failed=1; fi
  [ -z "$failed" ] || exit 1
  if [ -n "$started_db" ]; then
    export LAPSE_TEST_MYSQL_DSN="lapse:lapse@tcp(127.0.0.1:$port_db)/"
    LAPSE_TEST_MYSQL_PID=$(cat "$dir/mariadb/mariadb.pid")
    export LAPSE_TEST_MYSQL_PID
    log "database: $(mariadb --no-defaults -h 127.0.0.1 -P "$port_db" -ulapse -plapse -Nse 'SELECT VERSION()'), 127.0.0.1:$port_db"
  fi
  if [ -n "$started_mq" ]; then
    export LAPSE_TEST_ROCKETMQ=127.0.0.1:$port_mq
    export LAPSE_TEST_ROCKETMQ_DIR=$dir/rocketmq LAPSE_TEST_ROCKETMQ_PORT=$port_mq LAPSE_TEST_ROCKETMQ_VERSION=$rocketmq_version
    for action in stop kill start; do
      printf -v command '%q ' "$here/rocketmq.sh" "broker-$action" "$rocketmq_version" "$dir/rocketmq" "$port_mq"
      export "LAPSE_TEST_BROKER_${action^^}=$command"
    done
    log "broker:   RocketMQ $rocketmq_version, name server $LAPSE_TEST_ROCKETMQ"
  fi
fi

# In a process group of its own, so that it and what it starts can be ended together.
set -m
"$@" </dev/null 8>&- &
child=$!
set +m
status=0
wait "$child" || status=$?
exit "$status"
