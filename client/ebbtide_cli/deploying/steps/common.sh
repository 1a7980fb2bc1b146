# What every step begins with. Before it stand, as assignments: node, folder, home, service, build, options.
set -eu
umask 077
fact() { printf 'ebb-deploy %s\n' "$*"; }
fail() { printf '%s\n' "$*" >&2; exit 1; }

case ${HOME:-} in
    /*[!A-Za-z0-9/._@+-]* | '' | [!/]*) fail "the account's home directory, '${HOME:-}', has characters that cannot be used here" ;;
esac
cd "$HOME"
uid=$(id -u)
if [ "$uid" = 0 ]; then
    : "${folder:=/opt}" "${home:=/var/lib/ebbtide}"
else
    : "${folder:=.local/opt}" "${home:=.local/state/ebbtide}"
    : "${XDG_RUNTIME_DIR:=/run/user/$uid}"
    export XDG_RUNTIME_DIR
fi
case $folder in /*) ;; *) folder=$HOME/$folder ;; esac
case $home in /*) ;; *) home=$HOME/$home ;; esac

sent=$HOME/.ebbtide-deploy-$node.part
builds=$folder/ebbtide-builds
target=$builds/$build/ebbtide # the link that the bundle's install.sh makes last
own=$home/nodes/$node
launcher=$own/launch.sh

# Who keeps the agent: the machine's systemd, the account's, or nobody (a background process).
if [ "$uid" = 0 ]; then
    manager=systemd unit=ebbtide-agent.service units=/etc/systemd/system
    [ -d /run/systemd/system ] || manager=
else
    manager=systemd-user unit=ebbtide-agent-$node.service units=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user
    # Without lingering the account's systemd, and the agent with it, would end at its last logout.
    [ -S "$XDG_RUNTIME_DIR/systemd/private" ] && [ -e "/var/lib/systemd/linger/$(id -un)" ] || manager=
fi
keeper=${manager:-background}
case $service in
    none) keeper=background ;;
    systemd) [ -n "$manager" ] || fail "no systemd keeps services of this account (an ordinary one needs: loginctl enable-linger)" ;;
esac
control() {
    if [ "$uid" = 0 ]; then systemctl "$@"; else systemctl --user "$@"; fi
}

# What the launcher is to say; an upgrade changes the build alone.
wanted_launcher() {
    if [ "$options" = as-before ]; then
        sed "s|^EBB_BUILD=.*|EBB_BUILD=$target|" "$launcher"
        return
    fi
    cat <<END
#!/bin/sh
# Starts the agent of node $node. 'ebb deploy' wrote it, and restarts an agent that was not started by it as it is.
# kept by: $keeper
EBB_BUILD=$target
EBB_HOME=$home
EBB_DEPLOYED=\$(cksum < "\$0" | tr ' ' -)
export EBB_HOME EBB_DEPLOYED
exec "\$EBB_BUILD/bin/ebb" agent $options
END
}
launcher_is_wanted() {
    [ -e "$launcher" ] && [ "$(wanted_launcher)" = "$(cat "$launcher")" ]
}

# The process that holds the node's lock, which is the agent; nothing if none does.
agent_pid() {
    [ -e "$own/agent.lock" ] || return 0
    if ! flock -n "$own/agent.lock" true; then
        cat "$own/agent.lock"
    fi
}
agent_is_of_launcher() {
    pid=$(agent_pid)
    [ -n "$pid" ] && [ -e "$launcher" ] &&
        tr '\0' '\n' < "/proc/$pid/environ" | grep -qxF "EBB_DEPLOYED=$(cksum < "$launcher" | tr ' ' -)"
}
within() { # seconds, then a condition
    left=$(($1 * 5))
    shift
    until "$@"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 0.2
    done
}
agent_is_gone() { [ -z "$(agent_pid)" ]; }
stop_agent() {
    if [ -n "$manager" ] && control is-active --quiet "$unit"; then
        control stop "$unit"
    fi
    pid=$(agent_pid)
    [ -n "$pid" ] || return 0
    tr '\0' ' ' < "/proc/$pid/cmdline" | grep -q 'ebb.* agent ' || fail "process $pid holds $own/agent.lock, and is no agent"
    kill -TERM "$pid"
    within 30 agent_is_gone || fail "the agent (pid $pid) did not end within 30 s of SIGTERM"
}
