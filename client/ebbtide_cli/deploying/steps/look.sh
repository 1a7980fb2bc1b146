# Says how the host is. Changes nothing.
fact account "$(id -un)"
fact keeper "$keeper"
fact home "$home"
fact machine "$(uname -m)"
for tool in tar gzip flock cksum sha256sum setsid; do
    command -v "$tool" > /dev/null || fact lacks "$tool"
done
if command -v "python$python" > /dev/null; then fact python yes; fi
if [ -e "$target/bin/ebb" ]; then fact installed yes; fi
if [ "$(readlink "$folder/ebbtide" || true)" = "ebbtide-builds/$build/ebbtide" ]; then fact linked yes; fi
if [ -e "$launcher" ]; then fact deployed yes; fi
# Other nodes of this host; in a home directory of several hosts, another one's agent holds the lock of its node.
for one in "$home"/nodes/*/launch.sh; do
    [ -e "$one" ] && [ "$one" != "$launcher" ] || continue
    if (own=${one%/launch.sh} launcher=$one && { agent_is_gone || agent_is_of_launcher; }); then
        fact other "$(basename "${one%/launch.sh}")"
    fi
done
if [ -e "$own/tls/joined.json" ]; then
    fact joined "$(sed -n 's/.*"ca": *"\([^"]*\)".*/\1/p' "$own/tls/joined.json")"
    fact joined-at "$(sed -n 's/.*"address": *"\([^"]*\)".*/\1/p' "$own/tls/joined.json")"
fi
if [ -n "$(agent_pid)" ]; then fact agent runs; fi
if launcher_is_wanted && agent_is_of_launcher && units_are_wanted; then fact agent current; fi
