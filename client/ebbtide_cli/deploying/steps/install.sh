# Installs the bundle that was sent, unless it is there, and makes it the one that people use.
umask 022 # the jobs of all accounts read it
[ ! -d "$folder/ebbtide" ] || [ -L "$folder/ebbtide" ] || fail "$folder/ebbtide is a directory: move it away first"
mkdir -p "$builds"
exec 9> "$builds/.lock" # of a step that was cut off, and of hosts with one home directory
flock 9
if [ ! -e "$target/bin/ebb" ]; then
    printf '%s  %s\n' "$digest" "$sent" | sha256sum -c --status || fail "what arrived is not the bundle that was sent"
    rm -rf "${builds:?}/$build"
    mkdir -p "$builds/$build/bundle"
    tar -xzo -f "$sent" -C "$builds/$build/bundle"
    mv "$builds/$build/bundle"/*/* "$builds/$build/bundle/"
    sh "$builds/$build/bundle/install.sh" "$builds/$build" 9>&- >&2
    rm -rf "$builds/$build/bundle/wheels"
fi
rm -f "$sent"
ln -sfn "ebbtide-builds/$build/ebbtide" "$folder/.ebbtide.new"
mv -T "$folder/.ebbtide.new" "$folder/ebbtide"
