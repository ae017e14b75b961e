#!/usr/bin/env bash
# Stock peers for the tests and for measurements: fetched once with the ordinary package clients into target/foreign, offline afterwards.
#
#   peers.sh fetch java|go|python|stock-4.9.7|stock-5.5.0   fetch and build what a test needs (nothing if it is there)
#   peers.sh namesrv VERSION DIR PORT                       become a stock name server
#   peers.sh broker  VERSION DIR PORT NAMESRV [KEY=VALUE]…  become a stock broker `broker-a` with its store in DIR/store; broker.conf keys
#   peers.sh admin   VERSION ARG…                           stock mqadmin
#
# VERSION is 4.9.7 or 5.5.0. The last three end in exec, so the process id is that of the JVM. JAVA_HEAP (default 512m) bounds the broker's heap.
# The JVM starts quickly and stays small, and is slow at length: to measure a broker, set JVM_FLAGS="-Xms2g" JAVA_HEAP=2g and warm it up.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${RINGMQ_FOREIGN_DIR:-$(cd "$here/../../.." && pwd)/target/foreign}
client_versions="4.9.8 5.5.0"
java_small="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
# What the brokers reach into on a Java newer than 8.
java_open="--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED"
for package in java.nio sun.nio.ch java.lang java.util jdk.internal.misc; do
    java_open+=" --add-opens=java.base/$package=ALL-UNNAMED"
done

# jars ARTIFACT VERSION: the artifact with all it needs, in $cache/ARTIFACT-VERSION; complete once the directory has that name.
jars() {
    local to="$cache/$1-$2"
    [ -d "$to" ] && return
    rm -rf "$to.part"
    mvn -q -B -f "$here/java/pom.xml" -Dartifact="$1" -Drocketmq="$2" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$to.part" >&2
    mv "$to.part" "$to"
}

# stamp NAME FILE…: true if the files are not those of which NAME was built last.
stale() {
    local name=$1 sum
    shift
    sum=$(cat "$@" | sha256sum)
    [ "$(cat "$cache/$name.sum" 2>/dev/null)" != "$sum" ] || return 1
    printf '%s' "$sum" >"$cache/$name.sum.new"
}
built() { mv "$cache/$1.sum.new" "$cache/$1.sum"; }

fetch() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    case $1 in
    java)
        local v
        for v in $client_versions; do
            jars rocketmq-client "$v"
            if stale "classes-$v" "$here"/java/*.java; then
                rm -rf "$cache/classes-$v"
                javac -nowarn -Xlint:none -proc:none -d "$cache/classes-$v" -cp "$cache/rocketmq-client-$v/*" "$here"/java/*.java >&2
                built "classes-$v"
            fi
        done
        ;;
    admin)
        for v in 4.9.7 5.5.0; do
            jars rocketmq-tools "$v"
            if stale "admin-$v" "$here"/java/admin/*.java; then
                rm -rf "$cache/admin-$v"
                javac -nowarn -proc:none -d "$cache/admin-$v" -cp "$cache/rocketmq-tools-$v/*" "$here"/java/admin/*.java >&2
                built "admin-$v"
            fi
        done
        ;;
    stock-*)
        local part
        for part in namesrv broker tools; do
            jars "rocketmq-$part" "${1#stock-}"
        done
        ;;
    go)
        if stale go "$here"/go/*; then
            (cd "$here/go" && go build -mod=readonly -o "$cache/go-client" . >&2)
            built go
        fi
        ;;
    python)
        if stale python "$here/python/requirements.txt"; then
            rm -rf "$cache/python"
            python3 -m venv "$cache/python" >&2
            "$cache/python/bin/pip" install -q --disable-pip-version-check -r "$here/python/requirements.txt" >&2
            built python
        fi
        ;;
    *)
        echo "peers.sh: nothing to fetch is called $1" >&2
        exit 2
        ;;
    esac
    exec 9>&-
}

# home DIR: what 4.9.7 wants to find there before it starts: a logback file for each program.
home() {
    mkdir -p "$1/conf"
    local program
    for program in namesrv broker tools; do
        cat >"$1/conf/logback_$program.xml" <<'XML'
<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %p %c{0} %m%n</pattern></encoder></appender>
<root level="warn"><appender-ref ref="out"/></root></configuration>
XML
    done
}

# run JVM options and a main class with the jars of ARTIFACT-VERSION
run() {
    local lib=$1 dir=$2
    shift 2
    # shellcheck disable=SC2086
    exec java ${JVM_FLAGS-$java_small} $java_open -Drocketmq.home.dir="$dir" -Duser.home="$dir" -cp "$cache/$lib/*" "$@"
}

case ${1:-} in
fetch)
    fetch "$2"
    ;;
namesrv)
    fetch "stock-$2"
    home "$3"
    printf 'listenPort=%s\nkvConfigPath=%s/kvConfig.json\nconfigStorePath=%s/namesrv.properties\n' "$4" "$3" "$3" >"$3/namesrv.conf"
    run "rocketmq-namesrv-$2" "$3" -Xmx256m org.apache.rocketmq.namesrv.NamesrvStartup -c "$3/namesrv.conf"
    ;;
broker)
    fetch "stock-$2"
    version=$2 dir=$3 port=$4 namesrv=$5
    shift 5
    home "$dir"
    {
        echo "brokerClusterName=DefaultCluster"
        echo "brokerName=broker-a"
        echo "brokerId=0"
        echo "namesrvAddr=$namesrv"
        echo "brokerIP1=127.0.0.1"
        echo "brokerIP2=127.0.0.1"
        echo "listenPort=$port"
        echo "haListenPort=$((port + 1))"
        echo "storePathRootDir=$dir/store"
        echo "storePathCommitLog=$dir/store/commitlog"
        echo "osPageCacheBusyTimeOutMills=60000"
        echo "waitTimeMillsInSendQueue=60000"
        printf '%s\n' "$@"
    } >"$dir/broker.conf"
    run "rocketmq-broker-$version" "$dir" "-Xmx${JAVA_HEAP:-512m}" "-XX:MaxDirectMemorySize=1g" org.apache.rocketmq.broker.BrokerStartup -c "$dir/broker.conf"
    ;;
admin)
    version=$2
    shift 2
    fetch "stock-$version"
    home "$cache/admin-home"
    run "rocketmq-tools-$version" "$cache/admin-home" -Xmx256m org.apache.rocketmq.tools.command.MQAdminStartup "$@"
    ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
