# Checks the node. Exit code 1 says that there is a problem, which is among what it prints.
code=0
found=$(EBB_HOME=$home "$target/bin/ebb" doctor --json --node "$node" "$@") || code=$?
[ "$code" -le 1 ] || exit "$code"
fact doctor "$found"
