# Joins the cluster. The invitation comes in this very text, which no other account can read.
mkdir -p "$home"
EBB_HOME=$home "$target/bin/ebb" agent join --name "$node" << 'END' > /dev/null
@INVITATION@
END
