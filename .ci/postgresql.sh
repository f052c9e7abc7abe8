#!/usr/bin/env bash
# A throw-away PostgreSQL server of the system's package, on a free loopback port, as an unprivileged user.
#
#   .ci/postgresql.sh start DIR   start it in the background with its data in DIR (made when missing); prints its URL;
#                                 when it runs already, only prints the URL
#   .ci/postgresql.sh stop DIR    stop it and delete DIR
#   .ci/postgresql.sh run         start it in a temporary folder, print the URL, and stay until INT, TERM, or the end of
#                                 standard input; the folder is deleted at the end
#   .ci/postgresql.sh available   exit status 0 when PostgreSQL is installed
#
# As root, `start` and `run` install Debian's package when it is missing. PostgreSQL refuses to run as root, so the
# server then runs as the package's user `postgres`. The URL holds a random password; nothing durable is kept (no fsync).
set -euo pipefail

binaries() { # the newest installed version
    local found
    found=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
    [ -n "$found" ] || found=$(dirname "$(command -v postgres 2>/dev/null)" 2>/dev/null || true)
    [ -x "$found/initdb" ] && echo "$found"
}

install_package() {
    [ "$(id -u)" = 0 ] || { echo "PostgreSQL is not installed: apt-get install postgresql" >&2; exit 1; }
    # the package would start a cluster of its own on the default port
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
        echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql; } >&2
}

as_user=(setpriv) # prefix of commands that must not run as root
[ "$(id -u)" != 0 ] || as_user+=(--reuid postgres --regid postgres --clear-groups)

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

prepare() { # DIR → initialised cluster, its URL in DIR/url
    local dir=$1 password port
    password=$(head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \n')
    port=$(free_port)
    mkdir -p "$dir"
    [ "$(id -u)" != 0 ] || chown postgres: "$dir"
    (umask 077; echo "$password" > "$dir/password")
    [ "$(id -u)" != 0 ] || chown postgres: "$dir/password"
    (cd "$dir" && "${as_user[@]}" "$bin/initdb" -D "$dir/data" -U servetune -A scram-sha-256 --pwfile "$dir/password" \
        -E UTF8 --locale C --no-sync) > /dev/null
    cat >> "$dir/data/postgresql.conf" <<-CONF
		listen_addresses = '127.0.0.1'
		port = $port
		unix_socket_directories = '$dir'
		fsync = off
		synchronous_commit = off
		full_page_writes = off
		shared_buffers = 32MB
		max_connections = 60
		CONF
    echo "postgresql://servetune:$password@127.0.0.1:$port/postgres" > "$dir/url"
}

start() {
    local dir=$1
    if [ -f "$dir/data/postmaster.pid" ] && "${as_user[@]}" "$bin/pg_ctl" -D "$dir/data" status > /dev/null; then
        cat "$dir/url"
        return
    fi
    [ -f "$dir/url" ] || prepare "$dir"
    (cd "$dir" && "${as_user[@]}" "$bin/pg_ctl" -D "$dir/data" -l "$dir/log" -w start) > /dev/null || { cat "$dir/log" >&2; exit 1; }
    cat "$dir/url"
}

stop() {
    local dir=$1
    [ -f "$dir/url" ] || return 0
    (cd "$dir" && "${as_user[@]}" "$bin/pg_ctl" -D "$dir/data" -m fast -w stop) > /dev/null || true
    rm -rf "$dir"
}

run() {
    dir=$(mktemp -d /tmp/servetune-postgresql.XXXXXX) # global: the trap outlives the function
    server=
    chmod 755 "$dir"
    trap 'end_run' EXIT
    trap 'exit 0' INT TERM
    prepare "$dir"
    cd "$dir"
    "${as_user[@]}" --pdeathsig INT "$bin/postgres" -D "$dir/data" > "$dir/log" 2>&1 &
    server=$!
    for _ in $(seq 200); do
        "$bin/pg_isready" -q -h "$dir" -p "$(sed -n 's/^port = //p' "$dir/data/postgresql.conf")" && break
        kill -0 "$server" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
        sleep 0.1
    done
    cat "$dir/url"
    # standard input is a pipe that the parent holds: it closes when the parent ends, however it ends
    while read -r _; do :; done
}

end_run() {
    if [ -n "$server" ]; then
        kill -INT "$server" 2>/dev/null || true
        wait "$server" || true
    fi
    cd /
    rm -rf "$dir"
}

command=${1:-}
bin=$(binaries || true)
case $command in
    available) [ -n "$bin" ] ;;
    start | run)
        if [ -z "$bin" ]; then
            install_package
            bin=$(binaries)
        fi
        "$command" "${2:-}"
        ;;
    stop) stop "${2:?folder}" ;;
    *) sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
