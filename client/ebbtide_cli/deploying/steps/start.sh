# Starts the agent as the launcher says, and waits until it serves. One that already does so is left alone.
mkdir -p "$own"
launcher_is_wanted || {
    wanted_launcher > "$launcher.new"
    mv "$launcher.new" "$launcher"
}
units_are_wanted || write_units
serves() { [ -e "$own/agent.json" ] && agent_is_of_launcher; }
serves_or_ended() { serves || ! kill -0 "$started" 2> /dev/null; }
if ! serves; then
    stop_agent
    if [ "$keeper" = background ]; then
        drop_units
        cd "$home"
        setsid sh "$launcher" < /dev/null >> "$own/agent.log" 2>&1 &
        started=$!
        within 90 serves_or_ended && serves || {
            tail -n 3 "$own/agent.log" >&2
            exit 1
        }
    else
        control enable --quiet "$unit"
        [ "$keeper" != systemd ] || control enable --quiet ebbtide-leave.service
        control restart "$unit"
        within 90 serves || {
            control status --no-pager --lines 3 "$unit" >&2 || true
            fail "the agent does not serve after 90 s: see journalctl -u $unit"
        }
        [ "$keeper" != systemd ] || control start ebbtide-leave.service
    fi
fi
