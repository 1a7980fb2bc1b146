-- A journal of schema 1 of a master whose clock was a year ahead and was set right. It must keep loading, too.
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
(1,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":"","numa_node":null,"parent":null,"links":[],"mps":false,"compute_capability":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[],"share_with_foreign":false,"pool":"default","labels":{},"taints":[],"loan":null}'),
(2,31537003.0,'JobSubmitted','1','','{"job":"1","spec":{"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"nodes":1,"max_nodes":1,"spread":false,"needs":{"select":[],"tolerate":[],"on":[],"exclude":[],"gpu_types":[],"compute_capability":"","gpu_total_mem_bytes":0,"mixed_gpus":false,"require_paths":[]},"pool":"","job_class":"be","priority":42,"weight":1.0,"group":"","work_s":null,"time_limit_s":1000.0,"time_auto":false,"after":[],"begin_at":0.0,"asha":null,"suspend":"checkpoint","grace_s":180.0,"signal":"SIGTERM","signal_target":"auto","exit_zero":"suspended","retries":0,"move_checkpoints":false,"failover_after_s":null,"idle_ok":false,"idle_limit_s":null,"command":["x"],"workdir":"/","name":"","kind":"batch","env":{},"script":"","scripts":{},"resume_args":[],"launch":"single","python_env":"","snapshot":null,"slurm":false,"sdk":true,"warm":true,"stdin":false,"output":"","prefix_ranks":false,"log_rules":[],"notify":[]},"user":"ann","hold":false,"operation_id":"","task":null,"again_of":null,"request":""}'),
(3,31537003.0,'AttemptPlaced','1','','{"job":"1","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null,"waited":""}'),
(4,31537004.0,'AttemptStarted','1','','{"job":"1","attempt":1,"pid":1001,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":[],"leased":false}'),
(5,1105.0,'ClockSetBack','','','{"by_s":31535999.0}');
PRAGMA user_version = 1;
COMMIT;
