-- A journal of schema 1 with what was added after rates: needs of a job, marks of a node, and nodes that are taken out of
-- service, or excluded for one job. It must keep loading, too.
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
(2,1002.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"NVIDIA A100-SXM4-40GB","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":"8.0"}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"labels":{"zone":"lab"},"taints":["gold"]}'),
(3,1003.0,'NodeRegistered','','b','{"node":"b","hostname":"b","boot_id":"boot-1","gpus":[{"gpu":"b0","index":0,"model":"Tesla V100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":"7.0"}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"shared","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"labels":{},"taints":[]}'),
(4,1004.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["x"],"workdir":"/","name":"train","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"needs":{"select":[{"key":"zone","values":["lab","den"]}],"tolerate":["gold"],"on":[],"exclude":[],"gpu_types":["a100"],"compute_capability":"8.0","gpu_total_mem_bytes":42949672960,"mixed_gpus":false,"require_paths":["/data"]}},"user":"ann","hold":false,"operation_id":""}'),
(5,1005.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(6,1006.0,'AttemptRefused','1','','{"job":"1","attempt":1,"cause":"no such path","reason":"/data does not exist here (--require-path)","node":""}'),
(7,1006.0,'NodeExcluded','1','a','{"job":"1","node":"a","reason":"/data does not exist here (--require-path)"}'),
(8,1007.0,'NodeDrained','','a','{"node":"a","user":"root","reason":"new fans","deadline":8207.0,"force":true}'),
(9,1008.0,'NodeDrained','','b','{"node":"b","user":"root","reason":"","deadline":null,"force":false}'),
(10,1009.0,'NodeResumed','','b','{"node":"b","user":"ann"}');
PRAGMA user_version = 1;
COMMIT;
