# Ends the agent and takes away what was deployed. Logs, checkpoints and the state of jobs stay.
stop_agent
drop_units
rm -rf "$sent" "$launcher" "$launcher.new" "$own/tls"
others=no
for one in "$home"/nodes/*/launch.sh; do
    [ ! -e "$one" ] || others=yes
done
if [ "$others" = no ]; then
    case $(readlink "$folder/ebbtide" || true) in
        ebbtide-builds/*) rm -f "$folder/ebbtide" ;;
    esac
    rm -rf "$builds"
fi
if [ -d "$home" ]; then fact left "$home"; fi
