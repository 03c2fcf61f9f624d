#!/usr/bin/env bash
# Usage: scripts/rocketmq.sh start|stop|kill|status VERSION DIR PORT
#        scripts/rocketmq.sh broker-stop|broker-kill|broker-start VERSION DIR PORT
#        scripts/rocketmq.sh admin VERSION DIR PORT [MQADMIN ARGUMENTS…]
#
# A private RocketMQ: a name server on 127.0.0.1:PORT and one broker on PORT+10 (it also takes PORT+8 and PORT+11), with
# data, logs and pid files under DIR. The jars come from Maven Central once and are kept in the user's cache; Java and
# Maven are installed by apt when missing. `start` returns when the broker is registered, and prints the name server's
# address on stdout. VERSION is 5.5.0 by default ("-" or ""); 4.9.4 works too: it has only the 18 delay levels and
# delivers timer messages at once. broker-stop ends the broker in order, which takes it up to 20 s, broker-kill at once
# by SIGKILL; both keep its data. kill ends both servers at once, for when the data is thrown away.
#
#   LAPSE_ROCKETMQ_HEAP   the broker's largest heap; default 1g
#   LAPSE_ROCKETMQ_ACL    USER:PASSWORD: an ACL that knows only this user, who may do everything; 5.x only
set -euo pipefail

usage() { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 4 ] || usage
cmd=$1 version=$2 port=$4
[ -n "$version" ] && [ "$version" != - ] || version=5.5.0
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$3"
dir=$(cd "$3" && pwd)
shift 4
broker_port=$((port + 10))
namesrv=127.0.0.1:$port
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lapse
lib=$cache/rocketmq-$version
heap=${LAPSE_ROCKETMQ_HEAP:-1g}

log() { echo "rocketmq: $*" >&2; }

# The jars appear in one rename, so that a half-made folder is never used; one download at a time.
install() {
  local packages=()
  command -v java >/dev/null || packages+=(default-jre-headless)
  [ -d "$lib" ] || command -v mvn >/dev/null || packages+=(maven)
  [ ${#packages[@]} = 0 ] || "$here/apt-install.sh" "${packages[@]}"
  [ -d "$lib" ] && return
  mkdir -p "$cache"
  (
    flock 9
    [ -d "$lib" ] && exit
    log "fetching RocketMQ $version from Maven Central (about 100 MB, once)"
    tmp=$(mktemp -d "$cache/tmp.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    {
      echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
      echo '<groupId>lapse</groupId><artifactId>rocketmq-jars</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
      for artifact in rocketmq-namesrv rocketmq-broker rocketmq-tools; do
        echo "<dependency><groupId>org.apache.rocketmq</groupId><artifactId>$artifact</artifactId><version>$version</version></dependency>"
      done
      echo '</dependencies></project>'
    } >"$tmp/pom.xml"
    for try in 1 2 3; do
      if (cd "$tmp" && mvn -B -q org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
          -DincludeScope=runtime -DoutputDirectory="$tmp/lib") >"$tmp/mvn.log" 2>&1 </dev/null 9>&-; then
        mv "$tmp/lib" "$lib"
        exit
      fi
      sleep $((try * 3))
    done
    tail -n 20 "$tmp/mvn.log" >&2
    log "could not fetch RocketMQ $version"
    exit 1
  ) 9>"$cache/rocketmq.lock"
}

# protect USER PASSWORD: nobody else may do anything at the broker (5.x), and the admin tool is that user.
protect() {
  local auth=org.apache.rocketmq.auth
  cat >>"$dir/conf/broker.conf" <<CONF
authenticationEnabled=true
authenticationProvider=$auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=$auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"$1","password":"$2"}
innerClientAuthenticationCredentials={"accessKey":"$1","secretKey":"$2"}
authorizationEnabled=true
authorizationProvider=$auth.authorization.provider.DefaultAuthorizationProvider
authorizationMetadataProvider=$auth.authorization.provider.LocalAuthorizationMetadataProvider
CONF
  printf 'accessKey: %s\nsecretKey: %s\n' "$1" "$2" >"$dir/conf/tools.yml"
}

configure() {
  mkdir -p "$dir/conf" "$dir/store" "$dir/logs"
  cat >"$dir/conf/namesrv.conf" <<CONF
listenPort=$port
bindAddress=127.0.0.1
kvConfigPath=$dir/namesrv/kvConfig.json
configStorePath=$dir/namesrv/namesrv.properties
CONF
  cat >"$dir/conf/broker.conf" <<CONF
brokerClusterName=lapse
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
listenPort=$broker_port
bindAddress=127.0.0.1
namesrvAddr=$namesrv
storePathRootDir=$dir/store
storePathCommitLog=$dir/store/commitlog
mappedFileSizeCommitLog=67108864
mappedFileSizeTimerLog=16777216
diskMaxUsedSpaceRatio=98
timerPrecisionMs=100
autoCreateTopicEnable=false
traceTopicEnable=true
# The default of 200 ms refuses sends whenever a small, busy machine pauses.
waitTimeMillsInSendQueue=1000
CONF
  [ -z "${LAPSE_ROCKETMQ_ACL:-}" ] || protect "${LAPSE_ROCKETMQ_ACL%%:*}" "${LAPSE_ROCKETMQ_ACL#*:}"
  local name
  for name in logback_namesrv logback_broker logback_tools rmq.namesrv.logback rmq.broker.logback rmq.tools.logback; do
    cat >"$dir/conf/$name.xml" <<CONF
<configuration>
  <statusListener class="ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="file" class="ch.qos.logback.core.FileAppender"><file>$dir/logs/$name.log</file>
    <encoder><pattern>%d{yyyy-MM-dd HH:mm:ss.SSS} %p %t - %m%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
CONF
  done
  # 5.x has its logback under a package name of its own.
  case $version in 4.*) ;; *) sed -i 's/class="ch\.qos/class="org.apache.rocketmq.logging.ch.qos/' "$dir"/conf/rmq.*.xml ;; esac
}

# What every JVM here is started with; rocketmq.home.dir also marks it as ours.
java_common=(
  "-Duser.home=$dir" "-Drocketmq.home.dir=$dir" "-Drocketmq.namesrv.addr=$namesrv" "-Drocketmq.client.logRoot=$dir/logs"
  --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED
  --add-opens=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED
  -cp "$dir/conf:$lib/*"
)

# running NAME: the pid of our process, or nothing. A pid that was given to another process since is not ours.
running() {
  local pid
  pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
  tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -- "-Drocketmq.home.dir=$dir" || return 1
  echo "$pid"
}

# launch NAME JAVA_ARGUMENTS…: starts it and waits for "boot success".
launch() {
  local name=$1 out=$dir/$1.out deadline=$((SECONDS + 120))
  shift
  : >"$out"
  ROCKETMQ_HOME=$dir setsid java "$@" >>"$out" 2>&1 </dev/null &
  echo $! >"$dir/$name.pid"
  until grep -q 'boot success' "$out"; do
    if ! running "$name" >/dev/null && ! kill -0 "$(cat "$dir/$name.pid")" 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      tail -n 15 "$out" >&2
      log "the $name did not start; see $out and $dir/logs"
      end "$name" KILL
      exit 1
    fi
    sleep 0.2
  done
}

# end NAME SIGNAL
end() {
  local pid
  pid=$(running "$1") || return 0
  kill "-$2" "$pid"
  for _ in $(seq 300); do
    running "$1" >/dev/null || { rm -f "$dir/$1.pid"; return 0; }
    sleep 0.1
  done
  log "the $1, pid $pid, did not stop within 30 s, killing it"
  kill -9 "$pid"
  rm -f "$dir/$1.pid"
}

admin() {
  ROCKETMQ_HOME=$dir java -Xms32m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 "${java_common[@]}" \
    org.apache.rocketmq.tools.command.MQAdminStartup "$@"
}

start_namesrv() {
  running namesrv >/dev/null && return
  launch namesrv -Xms64m -Xmx256m -XX:+UseSerialGC "${java_common[@]}" \
    org.apache.rocketmq.namesrv.NamesrvStartup -c "$dir/conf/namesrv.conf"
}

start_broker() {
  running broker >/dev/null && return
  # A test need not fail because the disk is 90 % full, hence the last two.
  launch broker "-Xms$heap" "-Xmx$heap" -XX:+UseG1GC -XX:MaxDirectMemorySize=512m \
    -Drocketmq.broker.diskSpaceWarningLevelRatio=0.98 -Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97 "${java_common[@]}" \
    org.apache.rocketmq.broker.BrokerStartup -c "$dir/conf/broker.conf"
  local deadline=$((SECONDS + 60))
  until admin clusterList 2>/dev/null | grep -q "127.0.0.1:$broker_port"; do
    [ $SECONDS -lt $deadline ] || { log "the broker started but is not registered at $namesrv"; exit 1; }
    sleep 0.5
  done
}

case $cmd in
  start) install; configure; start_namesrv; start_broker; echo "$namesrv" ;;
  stop) end broker TERM; end namesrv TERM ;;
  kill) end broker KILL; end namesrv KILL ;;
  broker-start) install; configure; start_broker ;;
  broker-stop) end broker TERM ;;
  broker-kill) end broker KILL ;;
  admin) install; [ -d "$dir/conf" ] || configure; admin "$@" ;;
  status)
    for name in namesrv broker; do
      if pid=$(running $name); then echo "$name running pid=$pid"; else echo "$name stopped"; fi
    done
    running namesrv >/dev/null && running broker >/dev/null ;;
  *) usage ;;
esac
