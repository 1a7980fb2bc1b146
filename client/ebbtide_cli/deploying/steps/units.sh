# The units for systemd: those of the bundle for the machine's, and one of our own for an account's.
case $manager in
    systemd) all_units="ebbtide.slice ebbtide-jobs.service ebbtide-leave.service ebbtide-agent.service" ;;
    *) all_units=$unit ;;
esac
unit_text() {
    if [ "$manager" = systemd ]; then
        sed -e "s|/opt/ebbtide/bin/ebb agent\$|/bin/sh $launcher|" -e "s|/opt/ebbtide/|$folder/ebbtide/|" \
            -e "s|EBB_HOME=/var/lib/ebbtide\$|EBB_HOME=$home|" "$builds/$build/bundle/systemd/$1"
        return
    fi
    cat <<END
# The agent of node $node. Stopping and restarting it ends no job.
[Unit]
Description=Ebbtide agent
StartLimitIntervalSec=0
# The home directory may be that of other machines, too.
ConditionHost=$(uname -n)

[Service]
Type=exec
ExecStart=/bin/sh $launcher
Restart=always
RestartSec=1
RestartPreventExitStatus=2
TimeoutStopSec=30
Delegate=yes
KillMode=process
OOMPolicy=continue
TasksMax=infinity

[Install]
WantedBy=default.target
END
}
units_are_wanted() {
    [ "$keeper" != background ] || return 0
    [ -e "$target" ] || return 1
    for one in $all_units; do
        [ -e "$units/$one" ] && [ "$(unit_text "$one")" = "$(cat "$units/$one")" ] || return 1
    done
}
write_units() {
    (
        umask 022
        mkdir -p "$units"
        for one in $all_units; do
            unit_text "$one" > "$units/.$one.new"
            mv "$units/.$one.new" "$units/$one"
        done
    )
    control daemon-reload
}
drop_units() {
    [ -n "$manager" ] && [ -e "$units/$unit" ] || return 0
    for one in $all_units; do
        case $one in *.service) control disable --quiet "$one" || true ;; esac
        rm -f "$units/$one"
    done
    control daemon-reload
}
