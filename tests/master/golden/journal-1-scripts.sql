-- A journal of schema 1 with what was added next: scripts that are part of a job, Python environments, and scripts that
-- were edited between submit and start. It must keep loading, too.
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
(2,1001.0,'NodeRegistered','','a','{"node":"a","hostname":"a","boot_id":"boot-1","gpus":[{"gpu":"a0","index":0,"model":"A100","mem_bytes":42949672960,"healthy":true,"unhealthy_reason":""}],"cpus":32.0,"mem_bytes":274877906944,"checkpoint_root_id":"root-a","gpu_backend":"fake","version":"0","address":"","known":[]}'),
(3,1002.0,'JobSubmitted','1','','{"job":"1","spec":{"command":["train.sh","--lr","1"],"workdir":"/","name":"train.sh","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"script":"#!/bin/sh\necho $SLURM_JOB_ID\n","python_env":"/venv","slurm":true,"scripts":{}},"user":"ann","hold":false,"operation_id":""}'),
(4,1002.0,'JobSubmitted','2','','{"job":"2","spec":{"command":["python","train.py"],"workdir":"/","name":"train.py","env":{},"gpus_min":720720,"gpus_max":720720,"gpu_mem_bytes":0,"cpus":0.0,"mem_bytes":0,"job_class":"be","priority":42,"grace_s":180.0,"time_limit_s":null,"suspend":"checkpoint","launch":"single","retries":0,"exit_zero":"suspended","signal":"SIGTERM","signal_target":"auto","weight":1.0,"group":"","max_nodes":1,"nodes":1,"work_s":null,"time_auto":false,"resume_args":[],"warm":true,"spread":false,"move_checkpoints":false,"script":"","python_env":"","slurm":false,"scripts":{"train.py":"0a1b2c3d-17"}},"user":"ann","hold":false,"operation_id":""}'),
(5,1002.0,'AttemptPlaced','2','','{"job":"2","attempt":1,"allocation":{"nodes":[{"node":"a","gpus":[{"gpu":"a0","share":720720,"mem_bytes":42949672960}],"cpus":0.0,"mem_bytes":0}]},"reason":"starting on 1 GPU of node a","sticky":false,"reserved_s":null}'),
(6,1003.0,'AttemptStarted','2','a','{"job":"2","attempt":1,"pid":4242,"resumed_step":null,"swaps":0,"node":"","port":0,"sharing":null,"edited":["train.py"]}');
PRAGMA user_version = 1;
COMMIT;
