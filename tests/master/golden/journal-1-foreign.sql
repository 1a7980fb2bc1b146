-- A journal of schema 1 with the event that was added after drills: that processes of no job came to a GPU, or left it. It
-- must keep loading, too.
BEGIN;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    job TEXT NOT NULL,
    node TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_job ON events (job, sequence) WHERE job <> '';
INSERT INTO meta VALUES ('cluster_id','0123456789abcdef'),('epoch','1');
INSERT INTO events VALUES
(1,1001.0,'MasterStarted','','','{"epoch":1}'),
(2,1002.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":0,"parent":null,"links":[{"gpu":"a1","kind":1}]},{"gpu":"a1","index":1,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":0,"parent":null,"links":[{"gpu":"a0","kind":1}]}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":true}'),
(3,1003.0,'ForeignUseChanged','','a','{"node":"a","gpu":"a0","processes":[{"pid":7,"user":"alice","command":"python","mem_bytes":10737418240}]}'),
(4,1103.0,'ForeignUseChanged','','a','{"node":"a","gpu":"a0","processes":[{"pid":7,"user":"alice","command":"python","mem_bytes":10737418240},{"pid":8,"user":"bob","command":"jupyter","mem_bytes":null}]}'),
(5,1113.0,'ForeignUseChanged','','a','{"node":"a","gpu":"a1","processes":[{"pid":9,"user":"bob","command":"python","mem_bytes":1073741824}]}'),
(6,1114.0,'ForeignUseChanged','','a','{"node":"a","gpu":"a1","processes":[]}');
PRAGMA user_version = 1;
COMMIT;
